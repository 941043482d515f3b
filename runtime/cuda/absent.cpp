// A build without CUDA.
#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/cuda/cuda_versions.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/cuda/why_no_cuda.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"

namespace lockstep::detail {

Graph capture(const Stream& stream, const std::function<void()>&) {
  LOCKSTEP_CHECK(stream, "[capture] expected a stream, got none");
  stream.backend().begin_capture(stream.handle());  // throws
  return {};
}

Backend* make_cuda_backend() { return nullptr; }
std::string why_no_cuda() { return "this build of Lockstep has none"; }
Version cuda_runtime_version() { return {}; }
Version cuda_driver_version() { return {}; }

}  // namespace lockstep::detail

namespace lockstep {
namespace {
[[noreturn]] void refuse(const char* op, Device device) {
  throw NotSupported(cat("[", op, "] expected a CUDA device, got ", device));
}
}  // namespace

void* native_stream(const Stream& stream) { refuse("native_stream", stream.device()); }
void wait_for_native(const Stream& stream, void*) { refuse("wait_for_native", stream.device()); }
void native_waits_for(void*, const Stream& stream) { refuse("native_waits_for", stream.device()); }
int native_ordinal(Device device) { refuse("native_ordinal", device); }
std::optional<Device> device_at_ordinal(int) { return std::nullopt; }

}  // namespace lockstep
