// Streams that no handle holds at the moment, by device. Private to the library.
#pragma once

#include <mutex>
#include <vector>

#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {

class StreamPool {
 public:
  static StreamPool& of(Device device);

  // One that has nothing to do, so that nobody inherits another's work or errors; else a new one.
  static StreamState& take_or_make(Device device);
  // A body for a stream of the backend, which is destroyed when this throws.
  static StreamState& make(Device device, StreamHandle handle);

  void give(StreamState& stream) noexcept;
  int streams();  // and the streams for their copies

 private:
  StreamState* take();
  StreamState* take_retired();
  StreamState* pop();

  std::mutex mutex_;
  std::vector<StreamState*> free_;
  std::vector<StreamState*> retired_;  // of a device with an order checker
};

}  // namespace lockstep::detail
