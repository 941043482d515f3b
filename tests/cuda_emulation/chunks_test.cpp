// Convolutions whose columns do not fit in the scratch memory: images one by one, and images cut.
#include "cudnn/stand_in.h"
#include "lockstep/kernels/cuda/conv.cuh"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// Runs the emulated kernel and the host's; empty when `out` is the same.
template <class Args>
std::string compare(const Args& args, TestTensor& out, double tolerance) {
  run(args);
  const TestTensor got = out;
  kernels::table(DeviceType::host).entry<Args>()(current_stream(Device::cpu()), args);
  return mismatch(
      got, [&](std::int64_t i) { return out[i]; }, tolerance, tolerance);
}

}  // namespace

TEST_CASE("convolution in chunks", "[conv][chunks]") {
  const std::int64_t before = kernels::cuda::columns_bytes;
  const cudnn_stand_in::Offering none({}, {});
  for (const int groups : {1, 2})
    for (const std::int64_t batch : {1, 5})
      for (const DType dtype : kFloatingDTypes)
        for (const std::int64_t bytes : {1, 3000, 6000, 20000, 100000, 1 << 30}) {
          kernels::cuda::columns_bytes = bytes;
          const Window2d window{.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}};
          TestTensor x(dtype, {batch, 4, 12, 11}), w(dtype, {6, 4 / groups, 3, 3}), bias(dtype, {6}),
              y(dtype, {batch, 6, 12, 11});  // sizes that cuDNN is not asked for elsewhere
          TestTensor dx(dtype, x.shape()), dw(dtype, w.shape());
          x.fill_random(1, -1, 1), w.fill_random(2, -1, 1), bias.fill_random(3);
          INFO(to_string(dtype) << " groups " << groups << " batch " << batch << " bytes " << bytes);
          CHECK(compare(Conv2dArgs{x.in(), w.in(), bias.in(), y.out(), window, groups}, y, 16) == "");
          CHECK(compare(Conv2dArgs{x.in(), w.in(), {}, y.out(), window, groups}, y, 16) == "");
          y.fill_random(4, -1, 1);
          CHECK(compare(Conv2dGradInputArgs{y.in(), w.in(), dx.out(), window, groups}, dx, 16) == "");
          CHECK(compare(Conv2dGradWeightArgs{y.in(), x.in(), dw.out(), window, groups}, dw, 64) == "");
        }
  kernels::cuda::columns_bytes = before;
}
