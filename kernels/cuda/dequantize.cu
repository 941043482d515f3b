// Weights of 8 and 4 bits as numbers, for the products that there are.
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Codes {
  const void* data;
  const float* scales;
  std::int64_t columns, group;
};

template <class T, bool kNibbles>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const Codes codes, T* out, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::int64_t groups = (codes.columns + codes.group - 1) / codes.group;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / codes.columns, column = i % codes.columns;
    int code;
    if constexpr (kNibbles) {
      const std::int64_t byte = row * ((codes.columns + 1) / 2) + column / 2;
      const int both = static_cast<const std::uint8_t*>(codes.data)[byte];
      code = ((column % 2 == 0 ? both & 15 : both >> 4) ^ 8) - 8;
    } else {
      code = static_cast<const std::int8_t*>(codes.data)[i];
    }
    out[i] = narrow<T>(static_cast<float>(code) * codes.scales[row * groups + column / codes.group]);
  }
}

template <class T>
void run(const Stream& stream, const DequantizeArgs& args) {
  const std::int64_t count = element_count(args.out.view.shape);
  if (count == 0) return;
  const Codes codes{args.weight.codes.view.data, static_cast<const float*>(args.weight.scales.view.data),
                    args.weight.columns, args.weight.group};
  const auto kernel =
      args.weight.codes.view.dtype == DType::u8 ? dequantize_kernel<T, true> : dequantize_kernel<T, false>;
  launch(stream, DequantizeArgs::kName, kernel, grid_for(stream, count), codes, static_cast<T*>(args.out.view.data),
         count);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const DequantizeArgs& args) {
  check_floating(DequantizeArgs::kName, args.out.view.dtype, stream);
  dispatch_floating(args.out.view.dtype, [&]<class T>(Type<T>) { run<T>(stream, args); });
}

void list_dequantize(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(dequantize_kernel<T, true>);
    list.add(dequantize_kernel<T, false>);
  });
}

}  // namespace lockstep::kernels::cuda
