#include "lockstep/runtime/graph/graph.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/capture.h"

namespace lockstep {

Device Graph::device() const {
  LOCKSTEP_CHECK(work_, "[graph] expected a graph, got none");
  return work_->device();
}

void Graph::replay(const Stream& stream) {
  LOCKSTEP_CHECK(stream && stream.device() == device(), "[replay] expected a stream of ", device(), ", got ",
                 stream ? to_string(stream.device()) : "none");
  if (detail::current_capture) detail::current_capture->refuse("replay", "a graph inside another");
  work_->replay(stream);
}

void Graph::replay() { replay(current_stream(device())); }

bool can_capture(Device device) { return device.type() == DeviceType::cuda; }

}  // namespace lockstep
