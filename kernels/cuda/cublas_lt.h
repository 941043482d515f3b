// cuBLASLt, found at run time: one binary runs with and without it.
#pragma once

#include <cublasLt.h>

#include "lockstep/runtime/device.h"

namespace lockstep::kernels::cuda {

// The functions of the library that are used here.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

// What the program has linked already, else LOCKSTEP_CUBLASLT_LIBRARY, else the library of CUDA 13 or 12. Throws
// NotSupported, with the names that were tried, when there is none.
const CublasLt& cublas_lt();
bool has_cublas_lt();

// Throws DeviceError "[op] expected success of cublasLtXxx, got …" for anything but success.
void check_blas(cublasStatus_t status, Device device, const char* op, const char* call);

}  // namespace lockstep::kernels::cuda
