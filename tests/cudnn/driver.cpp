// A driver without a GPU, for cuDNN's compiler: it takes the code that it gets, and runs none of it. The CUDA runtime
// is told that there is no device. Built as libcuda.so.1, which LD_LIBRARY_PATH then finds.
#include <cuda.h>

#include <atomic>
#include <string>

// It is asked for by the old names too.
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuLinkCreate
#undef cuLinkAddData

namespace {

int object;
std::atomic<int> loaded = 0;
std::string& last_kernel() {
  static auto* const kept = new std::string;
  return *kept;
}
template <class T>
CUresult give(T* to) {
  *to = reinterpret_cast<T>(&object);
  return CUDA_SUCCESS;
}
CUresult give(int* to, int value) {
  *to = value;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// How often code was loaded, and the name of the last kernel of it.
int lockstep_loaded_code() { return loaded; }
const char* lockstep_last_kernel() { return last_kernel().c_str(); }

CUresult cuInit(unsigned) { return CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int* version) { return give(version, 13000); }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "an error", CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** text) { return *text = "CUDA_ERROR", CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return give(device, ordinal); }
CUresult cuDeviceGetCount(int* count) { return give(count, 1); }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) { return give(value, 0); }
CUresult cuCtxGetDevice(CUdevice* device) { return give(device, 0); }
CUresult cuCtxGetCurrent(CUcontext* context) { return give(context); }
CUresult cuCtxGetLimit(size_t* value, CUlimit) { return *value = 0, CUDA_SUCCESS; }
CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return give(context); }
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return give(context); }
CUresult cuModuleLoadData(CUmodule* module, const void*) { return ++loaded, give(module); }
CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return ++loaded, give(module);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) { return ++loaded, give(module); }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  return last_kernel() = name, give(function);
}
CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                           unsigned) {
  return ++loaded, give(library);
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char*, CUjit_option*, void**, unsigned, CUlibraryOption*,
                               void**, unsigned) {
  return ++loaded, give(library);
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  return last_kernel() = name, give(kernel);
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) { return CUDA_SUCCESS; }
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute, CUkernel, CUdevice) { return give(value, 0); }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return give(value, 0); }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) { return give(blocks, 1); }
CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction, const CUlaunchConfig*) { return give(size, 1); }
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, unsigned, void*, const cuuint64_t*,
                                const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
// What it looks for, and does not call.
CUresult cuCtxPushCurrent_v2(CUcontext) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxPopCurrent_v2(CUcontext*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxPushCurrent(CUcontext) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuCtxPopCurrent(CUcontext*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuDevicePrimaryCtxReset_v2(CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule, const char*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMemcpyDtoH_v2(void*, CUdeviceptr, size_t) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkAddData_v2(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkAddData(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLinkAddFile_v2(CUlinkState, CUjitInputType, const char*, unsigned, CUjit_option*, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLinkComplete(CUlinkState, void**, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkDestroy(CUlinkState) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   CUstream, void**) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
