#include "lockstep/kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep::kernels::cuda {
namespace {

struct Loaded {
  CublasLt table{};
  std::string error;  // empty: the table is complete
};

template <class F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

// Empty, or the name that is missing.
const char* fill(void* library, CublasLt& t) {
  if (!find(library, "cublasLtCreate", t.create)) return "cublasLtCreate";
  if (!find(library, "cublasLtDestroy", t.destroy)) return "cublasLtDestroy";
  if (!find(library, "cublasLtMatmul", t.matmul)) return "cublasLtMatmul";
  if (!find(library, "cublasLtMatmulDescCreate", t.desc_create)) return "cublasLtMatmulDescCreate";
  if (!find(library, "cublasLtMatmulDescDestroy", t.desc_destroy)) return "cublasLtMatmulDescDestroy";
  if (!find(library, "cublasLtMatmulDescSetAttribute", t.desc_set)) return "cublasLtMatmulDescSetAttribute";
  if (!find(library, "cublasLtMatrixLayoutCreate", t.layout_create)) return "cublasLtMatrixLayoutCreate";
  if (!find(library, "cublasLtMatrixLayoutDestroy", t.layout_destroy)) return "cublasLtMatrixLayoutDestroy";
  if (!find(library, "cublasLtMatrixLayoutSetAttribute", t.layout_set)) return "cublasLtMatrixLayoutSetAttribute";
  if (!find(library, "cublasLtMatmulPreferenceCreate", t.preference_create)) return "cublasLtMatmulPreferenceCreate";
  if (!find(library, "cublasLtMatmulPreferenceDestroy", t.preference_destroy)) return "cublasLtMatmulPreferenceDestroy";
  if (!find(library, "cublasLtMatmulPreferenceSetAttribute", t.preference_set))
    return "cublasLtMatmulPreferenceSetAttribute";
  if (!find(library, "cublasLtMatmulAlgoGetHeuristic", t.heuristic)) return "cublasLtMatmulAlgoGetHeuristic";
  return nullptr;
}

Loaded load() {
  Loaded loaded;
  if (dlsym(RTLD_DEFAULT, "cublasLtCreate") != nullptr && fill(RTLD_DEFAULT, loaded.table) == nullptr) return loaded;
  const std::string chosen(lockstep::detail::environment("LOCKSTEP_CUBLASLT_LIBRARY"));
  const std::vector<std::string> names =
      chosen.empty() ? std::vector<std::string>{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}
                     : std::vector<std::string>{chosen};
  loaded.error = "[matmul] expected cuBLASLt (LOCKSTEP_CUBLASLT_LIBRARY names it), got";
  for (const std::string& name : names) {
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      loaded.error += cat(" ", name, ": ", why ? why : "not found", ";");
      continue;
    }
    if (const char* missing = fill(library, loaded.table)) {
      loaded.error += cat(" ", name, ": no ", missing, ";");
      dlclose(library);
      continue;
    }
    loaded.error.clear();
    break;
  }
  return loaded;
}

const Loaded& loaded() {
  // Never destroyed: kernels may be enqueued while the process ends.
  static const Loaded& loaded = *new Loaded(load());
  return loaded;
}

const char* name_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "an unknown status";
}

}  // namespace

bool has_cublas_lt() { return loaded().error.empty(); }

const CublasLt& cublas_lt() {
  if (!has_cublas_lt()) lockstep::detail::fail<NotSupported>(loaded().error);
  return loaded().table;
}

void check_blas(cublasStatus_t status, Device device, const char* op, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw DeviceError(device, static_cast<int>(status),
                    cat("[", op, "] expected success of ", call, ", got ", name_of(status), " on ", device));
}

}  // namespace lockstep::kernels::cuda
