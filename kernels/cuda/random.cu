// Random numbers; kernels/philox.h has the mapping from counters to elements. A thread makes a pack of elements, of one
// block of words or more.
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/philox.h"

namespace lockstep::kernels::cuda {
namespace {

struct Numbers {
  std::uint64_t key, stream;
  const std::uint64_t* replayed;  // in the place of the two
  double a, b;
  std::uint64_t threshold;  // bernoulli
  std::int64_t low;         // integer
  std::uint64_t range;
};

template <class T>
__device__ T stored(std::int64_t value) {
  if constexpr (std::is_same_v<Compute<T>, T>)
    return functors::convert<T>(value);
  else
    return narrow<T>(static_cast<float>(value));
}

template <RandomKind kKind, class T>
inline constexpr int kPerBlock = kKind == RandomKind::bernoulli                              ? 4
                                 : kKind == RandomKind::integer || std::is_same_v<T, double> ? 2
                                                                                             : 4;

template <RandomKind kKind, class T>
inline constexpr int kMade = kPack<T> > kPerBlock<kKind, T> ? kPack<T> : kPerBlock<kKind, T>;

template <RandomKind kKind, class T>
__device__ void make(const philox::Block& block, const Numbers& n, T* out) {
  const std::uint64_t number[2] = {philox::join(block.words[0], block.words[1]),
                                   philox::join(block.words[2], block.words[3])};
  if constexpr (kKind == RandomKind::bernoulli) {
    for (int j = 0; j < 4; ++j) out[j] = stored<T>(block.words[j] < n.threshold ? 1 : 0);
  } else if constexpr (kKind == RandomKind::integer) {
    for (int j = 0; j < 2; ++j)
      out[j] = stored<T>(n.low + static_cast<std::int64_t>(philox::multiply_high(number[j], n.range)));
  } else if constexpr (kKind == RandomKind::uniform) {
    if constexpr (std::is_same_v<T, double>) {
      for (int j = 0; j < 2; ++j) out[j] = philox::uniform<T>(philox::fraction(number[j]), n.a, n.b);
    } else {
      const auto a = static_cast<float>(n.a), b = static_cast<float>(n.b);
      for (int j = 0; j < 4; ++j) out[j] = philox::uniform<T>(philox::fraction<T>(block.words[j]), a, b);
    }
  } else {
    if constexpr (std::is_same_v<T, double>) {
      philox::normal(philox::open_fraction(number[0]), philox::fraction(number[1]), n.a, n.b, &out[0], &out[1]);
    } else {
      const auto mean = static_cast<float>(n.a), deviation = static_cast<float>(n.b);
      for (int j = 0; j < 2; ++j) {
        float first, second;
        philox::normal(philox::open_fraction(block.words[2 * j]), philox::fraction<float>(block.words[2 * j + 1]), mean,
                       deviation, &first, &second);
        out[2 * j] = narrow<T>(first);
        out[2 * j + 1] = narrow<T>(second);
      }
    }
  }
}

template <RandomKind kKind, class T>
__global__ void __launch_bounds__(kThreads)
    random_kernel(T* out, std::int64_t count, bool packed, const Numbers numbers) {
  constexpr int kCount = kMade<kKind, T>, kOfBlock = kPerBlock<kKind, T>, kBlocks = kCount / kOfBlock;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::uint64_t key = numbers.replayed ? numbers.replayed[0] : numbers.key;
  const std::uint64_t stream = numbers.replayed ? numbers.replayed[1] : numbers.stream;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i * kCount < count; i += step) {
    Pack<T, kCount> made;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      make<kKind, T>(philox::block(static_cast<std::uint64_t>(i * kBlocks + b), stream, key), numbers,
                     made.element + b * kOfBlock);
    if (packed && (i + 1) * kCount <= count) {
      reinterpret_cast<Pack<T, kCount>*>(out)[i] = made;
      continue;
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (i * kCount + k < count) out[i * kCount + k] = made.element[k];
  }
}

template <RandomKind kKind, class T>
void run(const Stream& stream, const RandomArgs& args, const Numbers& numbers) {
  const std::int64_t count = element_count(args.out.view.shape);
  if (count == 0) return;
  constexpr int kCount = kMade<kKind, T>;
  launch(stream, RandomArgs::kName, random_kernel<kKind, T>, grid_for(stream, (count + kCount - 1) / kCount),
         data<T>(args.out), count, aligned_for(args.out.view.data, args.out.view.dtype, kCount), numbers);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const RandomArgs& args) {
  const DType dtype = args.out.view.dtype;
  Numbers numbers{args.key, args.stream, args.replayed, args.a, args.b, 0, 0, 0};
  switch (args.kind) {
    case RandomKind::uniform:
      check_floating(RandomArgs::kName, dtype, stream);
      return dispatch_floating(dtype, [&]<class T>(Type<T>) { run<RandomKind::uniform, T>(stream, args, numbers); });
    case RandomKind::normal:
      check_floating(RandomArgs::kName, dtype, stream);
      return dispatch_floating(dtype, [&]<class T>(Type<T>) { run<RandomKind::normal, T>(stream, args, numbers); });
    case RandomKind::bernoulli:
      numbers.threshold = philox::threshold(args.a);
      return dispatch(dtype, [&]<class T>(Type<T>) { run<RandomKind::bernoulli, T>(stream, args, numbers); });
    case RandomKind::integer:
      LOCKSTEP_CHECK(args.a < args.b || element_count(args.out.view.shape) == 0,
                     "[random] expected integers from a non-empty range, got [", args.a, ", ", args.b, ")");
      numbers.low = static_cast<std::int64_t>(args.a);
      numbers.range = static_cast<std::uint64_t>(static_cast<std::int64_t>(args.b) - numbers.low);
      return dispatch(dtype, [&]<class T>(Type<T>) { run<RandomKind::integer, T>(stream, args, numbers); });
    case RandomKind::count:
      break;
  }
}

void list_random(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(random_kernel<RandomKind::uniform, T>);
    list.add(random_kernel<RandomKind::normal, T>);
  });
  for_all([&]<class T>(Type<T>) {
    list.add(random_kernel<RandomKind::bernoulli, T>);
    list.add(random_kernel<RandomKind::integer, T>);
  });
}

}  // namespace lockstep::kernels::cuda
