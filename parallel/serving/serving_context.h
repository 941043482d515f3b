// What surrounds the computing of a batch. Private to the library, but for the templates of ReplicaPool.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/context.h"

namespace lockstep::detail {

// A stream of its own for each replica; the default one for cpu.
class LOCKSTEP_API ServingStreams {
 public:
  explicit ServingStreams(const std::vector<Device>& devices);
  // What the current streams of the calling thread do now comes before what replicas compute from now on.
  void written();
  // By a replica, before it computes.
  const Stream& next(int replica);

 private:
  struct Place {
    Stream stream;
    std::uint64_t seen = 0;
  };
  std::vector<Place> places_;  // each of its replica's thread
  std::mutex mutex_;
  std::uint64_t writes_ = 0;
  std::vector<Event> written_;  // of each replica's device
};

// Evaluation mode, no gradients, the replica's stream.
class LOCKSTEP_API ServingContext {
 public:
  // `output`: where answers are.
  ServingContext(const Stream& stream, Device output, Milliseconds timeout);
  ServingContext(const ServingContext&) = delete;
  ServingContext& operator=(const ServingContext&) = delete;
  // As finish(), where that was not called, whatever it throws.
  ~ServingContext();
  // Waits until the stream is done, and the one that answers are brought on: a thread whose device hangs hangs too.
  void finish() const;

 private:
  const InferenceMode inference_;
  const TrainingScope evaluation_;
  void wait_for(const Stream& stream) const;

  const Stream& stream_;
  const Device output_;
  const Milliseconds timeout_;
  std::optional<StreamScope> scope_;
  mutable bool finished_ = false;
};

// Calls, and logs what that throws.
LOCKSTEP_API void guard_callback(const std::function<void()>& call) noexcept;

}  // namespace lockstep::detail
