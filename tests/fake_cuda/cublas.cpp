// cublasLt: handles belong to a device, a product is checked and computes nothing. The library finds these by name, so
// programs that link the fake export them.
#include <cublasLt.h>

#include <cstring>
#include <utility>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

// What an operation reads besides its operands, by descriptor. Under the machine's mutex.
struct Epilogue {
  bool has_run = false;
  std::uint32_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
std::map<const void*, Epilogue>& epilogues() {
  static auto* const kept = new std::map<const void*, Epilogue>;
  return *kept;
}

template <class Handle>
cublasStatus_t make(const char* name, Handle* handle, unsigned need, bool of_device) {
  const cudaError_t result = run_call(name, need, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    *handle = reinterpret_cast<Handle>(new std::max_align_t);
    call.machine.handles[*handle] = of_device ? call.thread.current : kNoDevice;  // descriptors are host objects
    return cudaSuccess;
  });
  // The errors of cublasLt are its own: they are not the thread's last CUDA error.
  this_thread(state()).looked_at = true;
  return result == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t end(const char* name, const void* handle, unsigned need) {
  State& machine = state();
  Call call{name, machine, this_thread(machine)};
  (void)enter(call, need);
  std::lock_guard lock(machine.mutex);
  if (machine.handles.erase(handle) == 0) {
    (void)call.fail(Rule::dead_handle, machine.dead.contains(handle) ? "it was destroyed before" : "not a handle");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  machine.dead.insert(handle);
  epilogues().erase(handle);
  return CUBLAS_STATUS_SUCCESS;
}

// Under the mutex.
bool living(Call& call, const void* handle, const char* what) {
  if (call.machine.handles.contains(handle)) return true;
  (void)call.fail(Rule::dead_handle,
                  lockstep::cat(what, call.machine.dead.contains(handle) ? " was destroyed" : " was never made"));
  return false;
}

cublasStatus_t set(const char* name, const void* handle) {
  State& machine = state();
  Call call{name, machine, this_thread(machine)};
  std::lock_guard lock(machine.mutex);
  return living(call, handle, "the descriptor") ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make("cublasLtCreate", handle, context | raw, true); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return end("cublasLtDestroy", handle, context | raw); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t, cudaDataType_t) {
  return make("cublasLtMatmulDescCreate", descriptor, nothing, false);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  return end("cublasLtMatmulDescDestroy", descriptor, nothing);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t) {
  const cublasStatus_t result = set("cublasLtMatmulDescSetAttribute", descriptor);
  if (result != CUBLAS_STATUS_SUCCESS) return result;
  std::lock_guard lock(state().mutex);
  Epilogue& epilogue = epilogues()[descriptor];
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) std::memcpy(&epilogue.kind, value, sizeof epilogue.kind);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) std::memcpy(&epilogue.bias, value, sizeof epilogue.bias);
  return result;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType, std::uint64_t, std::uint64_t,
                                          std::int64_t) {
  return make("cublasLtMatrixLayoutCreate", layout, nothing, false);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return end("cublasLtMatrixLayoutDestroy", layout, nothing);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t,
                                                const void*, std::size_t) {
  return set("cublasLtMatrixLayoutSetAttribute", layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make("cublasLtMatmulPreferenceCreate", preference, nothing, false);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return end("cublasLtMatmulPreferenceDestroy", preference, nothing);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*, std::size_t) {
  return set("cublasLtMatmulPreferenceSetAttribute", preference);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  State& machine = state();
  Call call{"cublasLtMatmulAlgoGetHeuristic", machine, this_thread(machine)};
  if (enter(call, context | raw) != cudaSuccess) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::lock_guard lock(machine.mutex);
  *found = 0;
  if (!living(call, handle, "the handle") || !living(call, operation, "the operation") ||
      !living(call, preference, "the preference")) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (const void* layout : {a, b, c, d}) {
    if (!living(call, layout, "a layout")) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void*, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void*, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream_handle) {
  State& machine = state();
  Call call{"cublasLtMatmul", machine, this_thread(machine)};
  if (enter(call, context) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  std::lock_guard lock(machine.mutex);
  const Stream* stream = find_stream(call, stream_handle);
  if (!stream || !living(call, handle, "the handle") || !living(call, operation, "the operation")) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (const void* layout : {a_layout, b_layout, c_layout, d_layout}) {
    if (!living(call, layout, "a layout")) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int handle_device = machine.handles[handle];
  if (handle_device != stream->device || call.thread.current != stream->device) {
    (void)call.fail(Rule::wrong_device,
                    lockstep::cat("a handle of device ", handle_device, " with device ", call.thread.current,
                                  " current, on a stream of device ", stream->device));
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  for (const void* operand : {a, b, c, static_cast<const void*>(d)}) {
    if (!check_operand(call, operand, 1, stream->device, "an operand")) return CUBLAS_STATUS_INVALID_VALUE;
  }
  Epilogue& epilogue = epilogues()[operation];
  if (!std::exchange(epilogue.has_run, true) && machine.collectives > 0)
    (void)call.fail(Rule::during_collective, "the first product of an operation loads its code");
  if ((epilogue.kind & CUBLASLT_EPILOGUE_BIAS) && !check_operand(call, epilogue.bias, 1, stream->device, "the bias"))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes > 0 && !check_operand(call, workspace, workspace_bytes, stream->device, "the workspace")) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return put(call, stream_handle, *stream) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
