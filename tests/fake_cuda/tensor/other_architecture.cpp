// A GPU that the build has no kernels for.
#include <cuda_runtime_api.h>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;

TEST_CASE("a GPU that the build has no kernels for is told of, with its architecture and those of the build") {
  const Tensor x = ones({4}, {.device = Device::cuda(0)});
  for (const cudaError_t error : {cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion}) {
    fake_cuda::inject({.call = "cudaLaunchKernel", .error = error});
    const std::string message = support::message_of<DeviceError>([&] { exp(x); });
    fake_cuda::forget_injections();
    CHECK(message.find(cudaGetErrorName(error)) != message.npos);
    CHECK(message.find("cuda:0 has compute capability 9.0") != message.npos);
    CHECK(message.find("this build of Lockstep has kernels for \"") != message.npos);
    CHECK(message.find("-DCMAKE_CUDA_ARCHITECTURES=90") != message.npos);
    CHECK(message.find("-DLOCKSTEP_CUDA_FAT=ON") != message.npos);
  }
  fake_cuda::inject({.call = "cudaLaunchKernel", .error = cudaErrorInvalidValue});
  CHECK(support::message_of<DeviceError>([&] { exp(x); }).find("kernels for") == std::string::npos);
  fake_cuda::forget_injections();
  CHECK(exp(x - 1).to_vector<float>() == std::vector<float>(4, 1));  // the device goes on
}
