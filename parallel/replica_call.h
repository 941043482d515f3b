// Running replicas on their device threads: the part of parallel_apply that does not depend on types.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/nn/read_gate.h"

namespace lockstep::detail {

class ReplicaGroup;

// One call of several replicas. Each task shares it, so that a replica that outlives its deadline finds everything it
// uses still there. A task lets go of it before it says that it is done: where no deadline has passed, the call dies in
// its caller's thread, and the code of a plug-in that derives from this may be unloaded once run_replicas() returns.
class LOCKSTEP_API ReplicaCall {
 public:
  explicit ReplicaCall(std::span<const Device> devices);
  ReplicaCall(const ReplicaCall&) = delete;
  ReplicaCall& operator=(const ReplicaCall&) = delete;
  virtual ~ReplicaCall();

 protected:
  // Calls the replica's function and keeps what it returns. Runs on its device thread; may throw.
  virtual void run(std::size_t replica) = 0;
  // Drops the replica's function, input and output.
  virtual void forget(std::size_t replica) noexcept = 0;

 private:
  friend LOCKSTEP_API void run_replicas(const std::shared_ptr<ReplicaCall>& call, Milliseconds timeout);
  enum class Progress : std::uint8_t { pending, finished, abandoned };
  struct Replica;

  void run_here();                                 // the one replica, in the calling thread
  void run_replica(std::size_t replica) noexcept;  // in the device thread
  void run_in_context(std::size_t replica);
  std::size_t post_all(const std::shared_ptr<ReplicaCall>& self, std::exception_ptr& refused);
  void give_up(Milliseconds timeout);
  void take_over_sequence() const;
  void add_deferred_gradients();
  void drop_deferred_gradients();
  void stop_reading() noexcept { Reading::leave(reading_); }
  void throw_failures();

  ThreadContext context_;                       // of the caller
  std::uint64_t call_number_ = 0;               // of the caller's thread, for random numbers
  Reading::Held reading_;                       // what the caller reads, until the last replica has returned
  std::vector<detail::StreamBody*> streams_;    // the caller's streams that are not the default ones
  std::unique_ptr<Substitution> substitution_;  // what the caller's scopes say: they may end before a late replica
  std::size_t count_;
  std::unique_ptr<Replica[]> replicas_;
  std::unique_ptr<ReplicaGroup> group_;  // of several
  std::shared_ptr<Join> join_;           // apart: what tasks tell last, when they hold nothing else of the call
};

// Runs all replicas and returns when all have returned: one in the calling thread, several on their device threads.
// Throws ReplicaError when some threw, TimeoutError when some have not returned in time, DeviceError when a device
// does not answer (then nothing was started, unless it was lost at this very moment), and Error when it is called from
// inside a replica.
LOCKSTEP_API void run_replicas(const std::shared_ptr<ReplicaCall>& call, Milliseconds timeout);

// Throws Error, naming `op`, inside a replica or on a backward thread: waiting there for device threads could deadlock.
LOCKSTEP_API void check_not_in_replica(const char* op);
// Throws DeviceError when the thread of one of the devices is lost.
LOCKSTEP_API void check_answering(std::span<const Device> devices);

}  // namespace lockstep::detail
