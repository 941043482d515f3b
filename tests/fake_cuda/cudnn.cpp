// cuDNN: handles belong to a device, a convolution is checked and computes nothing.
#include "cudnn/stand_in.h"
#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

namespace dnn = cudnn_stand_in;

// The stream of each handle. Under the machine's mutex.
std::map<dnn::Handle, cudaStream_t>& streams_of_handles() {
  static auto* const kept = new std::map<dnn::Handle, cudaStream_t>;
  return *kept;
}

dnn::Status create(dnn::Handle* handle) {
  const cudaError_t result = run_call("cudnnCreate", context | raw, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    *handle = reinterpret_cast<dnn::Handle>(new std::max_align_t);
    call.machine.handles[*handle] = call.thread.current;
    return cudaSuccess;
  });
  this_thread(state()).looked_at = true;  // its errors are its own
  return result == cudaSuccess ? dnn::kSuccess : dnn::kInternalError;
}

dnn::Status set_stream(dnn::Handle handle, dnn::NativeStream stream) {
  State& machine = state();
  Call call{"cudnnSetStream", machine, this_thread(machine)};
  std::lock_guard lock(machine.mutex);
  if (!machine.handles.contains(handle)) {
    (void)call.fail(Rule::dead_handle, "the handle was never made, or is destroyed");
    return dnn::kBadParam;
  }
  streams_of_handles()[handle] = static_cast<cudaStream_t>(stream);
  return dnn::kSuccess;
}

std::size_t bytes_of(const dnn::Array& array) {
  std::size_t bytes = array.type == dnn::kFloat ? 4 : 2;
  for (const std::int64_t dim : array.dims) bytes *= static_cast<std::size_t>(dim);
  return bytes;
}

dnn::Status execute(dnn::Handle handle, const dnn::Convolution& convolution) {
  State& machine = state();
  Call call{"cudnnBackendExecute", machine, this_thread(machine)};
  if (enter(call, context) != cudaSuccess) return dnn::kExecutionFailed;
  std::lock_guard lock(machine.mutex);
  const cudaStream_t stream_handle = streams_of_handles()[handle];
  const Stream* stream = find_stream(call, stream_handle);
  const auto device = machine.handles.find(handle);
  if (!stream || device == machine.handles.end()) {
    if (stream) (void)call.fail(Rule::dead_handle, "the handle was never made, or is destroyed");
    return dnn::kBadParam;
  }
  if (device->second != stream->device || call.thread.current != stream->device) {
    (void)call.fail(Rule::wrong_device,
                    lockstep::cat("a handle of device ", device->second, " with device ", call.thread.current,
                                  " current, on a stream of device ", stream->device));
    return dnn::kExecutionFailed;
  }
  for (const dnn::Array* array : {&convolution.x, &convolution.w, &convolution.y})
    if (!check_operand(call, array->data, bytes_of(*array), stream->device, "an operand")) return dnn::kBadParam;
  if (convolution.workspace_bytes > 0 &&
      !check_operand(call, convolution.workspace, static_cast<std::size_t>(convolution.workspace_bytes), stream->device,
                     "the workspace"))
    return dnn::kBadParam;
  if (convolution.first && machine.collectives > 0)
    (void)call.fail(Rule::during_collective, "the first convolution of a plan loads its code");
  return put(call, stream_handle, *stream) == cudaSuccess ? dnn::kSuccess : dnn::kExecutionFailed;
}

[[maybe_unused]] const bool in_place = [] {
  dnn::hooks() = {.create = create,
                  .set_stream = set_stream,
                  .execute = execute,
                  .made =
                      [](const void* descriptor) {
                        std::lock_guard lock(state().mutex);
                        state().handles[descriptor] = kNoDevice;  // host objects
                      },
                  .ended =
                      [](const void* descriptor) {
                        std::lock_guard lock(state().mutex);
                        state().handles.erase(descriptor);
                      }};
  return true;
}();

}  // namespace
}  // namespace fake_cuda
