#include "lockstep/runtime/backend.h"

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

StreamHandle Backend::adopt_stream(int index, void* /*native*/) {
  throw NotSupported(cat("[Stream::foreign] expected a device whose streams other libraries make too, got ",
                         lockstep::to_string(type()), ":", index));
}

void Backend::begin_capture(StreamHandle /*stream*/) {
  throw NotSupported(cat("[capture] expected a device that replays graphs (cuda), got one of type ", type()));
}

Backend& backend(DeviceType type) {
  Backend* found = detail::device_table().backends[static_cast<int>(type)];
  if (!found) [[unlikely]] {
    throw NotSupported(cat("[backend] expected a device type that this build and machine have, got ", type));
  }
  return *found;
}

}  // namespace lockstep
