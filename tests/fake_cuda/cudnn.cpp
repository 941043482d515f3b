// cuDNN: handles belong to a device, a call is checked and computes nothing.
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
std::size_t bytes_of(const dnn::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) last += (tensor.dims[d] - 1) * tensor.strides[d];
  return static_cast<std::size_t>(last + 1) * (tensor.type == dnn::kFloat ? 4 : 2);
}

struct Operand {
  const void* data;
  std::size_t bytes;
  const char* what;
};

dnn::Status execute(dnn::Handle handle, const std::vector<Operand>& operands, bool first) {
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
  for (const Operand& operand : operands)
    if (!check_operand(call, operand.data, operand.bytes, stream->device, operand.what)) return dnn::kBadParam;
  if (first && machine.collectives > 0)
    (void)call.fail(Rule::during_collective, "the first call of a plan loads its code");
  return put(call, stream_handle, *stream) == cudaSuccess ? dnn::kSuccess : dnn::kExecutionFailed;
}

void add_workspace(std::vector<Operand>& operands, const void* data, std::int64_t bytes) {
  if (bytes > 0) operands.push_back({data, static_cast<std::size_t>(bytes), "the workspace"});
}

dnn::Status convolve(dnn::Handle handle, const dnn::Convolution& convolution) {
  std::vector<Operand> operands;
  for (const dnn::Array* array : {&convolution.x, &convolution.w, &convolution.y, &convolution.bias})
    if (array->count() > 0) operands.push_back({array->data, bytes_of(*array), "an operand"});
  add_workspace(operands, convolution.workspace, convolution.workspace_bytes);
  return execute(handle, operands, convolution.first);
}

dnn::Status execute_graph(dnn::Handle handle, const dnn::Graph& graph) {
  std::vector<Operand> operands;
  for (const dnn::Tensor& array : graph.arrays)
    if (!array.by_value) operands.push_back({array.data, bytes_of(array), "an operand"});
  add_workspace(operands, graph.workspace, graph.workspace_bytes);
  return execute(handle, operands, graph.first);
}

[[maybe_unused]] const bool in_place = [] {
  dnn::hooks() = {.create = create,
                  .set_stream = set_stream,
                  .execute = convolve,
                  .execute_graph = execute_graph,
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
