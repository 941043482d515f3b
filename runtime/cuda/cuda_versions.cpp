#include <cuda_runtime_api.h>

#include "lockstep/runtime/internal/versions.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::detail {

std::string cuda_version_text(int number) {
  return number > 0 ? cat(number / 1000, ".", number % 1000 / 10) : std::string();
}

namespace {

template <class Function>
std::string ask(Function function) {
  int version = 0;
  if (function(&version) == cudaSuccess) return cuda_version_text(version);
  cudaGetLastError();
  return "";
}

}  // namespace

Version cuda_runtime_version() { return {cuda_version_text(CUDART_VERSION), ask(cudaRuntimeGetVersion)}; }
Version cuda_driver_version() { return {"", ask(cudaDriverGetVersion)}; }

}  // namespace lockstep::detail
