// Streams that no handle holds at the moment, by device and priority. Private to the library.
#pragma once

#include <mutex>
#include <vector>

#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {

class StreamPool {
 public:
  static StreamPool& of(Device device);

  // One that has nothing to do, so that nobody inherits another's work or errors; else a new one.
  static StreamState& take_or_make(Device device, StreamPriority priority);
  // A new one, whichever lie here.
  static StreamState& make(Device device, StreamPriority priority);
  // A body for a stream of the backend, which is destroyed when this throws.
  static StreamState& make(Device device, StreamHandle handle, StreamPriority priority = StreamPriority::normal);

  void give(StreamState& stream) noexcept;
  int streams();  // and the streams for their copies

 private:
  struct Shelf {  // of one priority
    std::vector<StreamState*> free;
    std::vector<StreamState*> retired;  // of a device with an order checker
  };
  Shelf& shelf(StreamPriority priority) { return shelves_[static_cast<int>(priority)]; }
  StreamState* take(Shelf& from);
  StreamState* take_retired(Shelf& from);
  StreamState* pop(Shelf& from);

  std::mutex mutex_;
  Shelf shelves_[kStreamPriorities];
};

}  // namespace lockstep::detail
