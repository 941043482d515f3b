// Weights of 8 and 4 bits as numbers, for the products that there are.
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Packs of kCount numbers, none of which reaches into a second row, nor so into a second group: that is a whole row or
// a multiple of 32.
struct Codes {
  const void* data;
  const float* scales;
  std::int64_t groups;            // of a row
  Splitter by_row, by_group;      // positions of packs
  std::int64_t packs, row_words;  // row_words: of the codes
};

// The unsigned integer of so many bytes.
template <int kBytes>
using Word = std::conditional_t<
    kBytes == 8, std::uint64_t,
    std::conditional_t<kBytes == 4, std::uint32_t, std::conditional_t<kBytes == 2, std::uint16_t, std::uint8_t>>>;
template <bool kNibbles, int kCount>
using CodesOf = Word<kNibbles ? (kCount + 1) / 2 : kCount>;

template <class T, bool kNibbles, int kCount>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const Codes codes, Pack<T, kCount>* out) {
  using W = CodesOf<kNibbles, kCount>;
  constexpr int kPacks = kCount == 1 ? 1 : sizeof(W) >= 4 ? 4 : 8;  // that a thread has under way
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; first < codes.packs;
       first += kPacks * step) {
    W words[kPacks];
    float scales[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t at = first + p * step;
      if (at >= codes.packs) continue;
      std::int64_t column, within;
      const std::int64_t row = codes.by_row.split(at, &column), group = codes.by_group.split(column, &within);
      if constexpr (kNibbles && kCount == 1)
        words[p] =
            static_cast<W>(static_cast<const W*>(codes.data)[row * codes.row_words + column / 2] >> column % 2 * 4);
      else
        words[p] = static_cast<const W*>(codes.data)[at];
      scales[p] = codes.scales[row * codes.groups + group];
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t at = first + p * step;
      if (at >= codes.packs) continue;
      Pack<T, kCount> pack;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int code = kNibbles ? (static_cast<int>(words[p] >> 4 * k & 15) ^ 8) - 8
                                  : static_cast<int>(static_cast<std::int8_t>(words[p] >> 8 * k & 255));
        pack.element[k] = narrow<T>(static_cast<float>(code) * scales[p]);
      }
      out[at] = pack;
    }
  }
}

template <class T, bool kNibbles, int kCount>
void run(const Stream& stream, const DequantizeArgs& args) {
  const QuantizedView& w = args.weight;
  const std::int64_t packs = element_count(args.out.view.shape) / kCount;
  const Codes codes{w.codes.view.data,
                    static_cast<const float*>(w.scales.view.data),
                    (w.columns + w.group - 1) / w.group,
                    Splitter(w.columns / kCount, packs),
                    Splitter(w.group / kCount, packs),
                    packs,
                    (w.columns + 1) / 2};
  launch(stream, DequantizeArgs::kName, dequantize_kernel<T, kNibbles, kCount>, grid_for(stream, packs), codes,
         static_cast<Pack<T, kCount>*>(args.out.view.data));
}

template <class T, bool kNibbles>
void run(const Stream& stream, const DequantizeArgs& args) {
  constexpr int kCount = kPack<T>;
  const QuantizedView& w = args.weight;
  const auto codes = reinterpret_cast<std::uintptr_t>(w.codes.view.data);
  if (w.columns % kCount == 0 && codes % sizeof(CodesOf<kNibbles, kCount>) == 0 &&
      aligned_for(args.out.view.data, args.out.view.dtype, kCount))
    run<T, kNibbles, kCount>(stream, args);
  else
    run<T, kNibbles, 1>(stream, args);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const DequantizeArgs& args) {
  check_floating(DequantizeArgs::kName, args.out.view.dtype, stream);
  if (element_count(args.out.view.shape) == 0) return;
  dispatch_floating(args.out.view.dtype, [&]<class T>(Type<T>) {
    args.weight.codes.view.dtype == DType::u8 ? run<T, true>(stream, args) : run<T, false>(stream, args);
  });
}

void list_dequantize(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(dequantize_kernel<T, true, kPack<T>>);
    list.add(dequantize_kernel<T, false, kPack<T>>);
    list.add(dequantize_kernel<T, true, 1>);
    list.add(dequantize_kernel<T, false, 1>);
  });
}

}  // namespace lockstep::kernels::cuda
