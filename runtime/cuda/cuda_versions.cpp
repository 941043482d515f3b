#include "lockstep/runtime/cuda/cuda_versions.h"

#include <cuda_runtime_api.h>

#include "lockstep/runtime/strings.h"

namespace lockstep::detail {
namespace {

// 13000 is 13.0; empty for 0.
std::string text_of(int number) { return number > 0 ? cat(number / 1000, ".", number % 1000 / 10) : std::string(); }

template <class Function>
std::string ask(Function function) {
  int version = 0;
  if (function(&version) == cudaSuccess) return text_of(version);
  cudaGetLastError();
  return "";
}

}  // namespace

Version cuda_runtime_version() { return {text_of(CUDART_VERSION), ask(cudaRuntimeGetVersion)}; }
Version cuda_driver_version() { return {"", ask(cudaDriverGetVersion)}; }

}  // namespace lockstep::detail
