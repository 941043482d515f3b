// Kernels that move or make elements without computing: where, fill, arange, transposing copies.
#include <cmath>
#include <cstring>

#include "lockstep/kernels/cuda/elementwise.cuh"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/transpose.h"

namespace lockstep::kernels::cuda {
namespace {

template <class T>  // an unsigned integer
struct Where {
  static constexpr int kInputs = 3, kElements = kPack<T>;
  using In0 = bool;
  using In1 = T;
  using In2 = T;
  using Output = T;
  template <int N>
  __device__ void operator()(const Pack<bool, N>& condition, const Pack<T, N>& x, const Pack<T, N>& y,
                             Pack<T, N>& z) const {
#pragma unroll
    for (int k = 0; k < N; ++k) z.element[k] = condition.element[k] ? x.element[k] : y.element[k];
  }
};

template <class T>  // an unsigned integer
__global__ void __launch_bounds__(kThreads) fill_kernel(T* out, T value, bool packed, const Offsets<1> offsets) {
  constexpr int kCount = 16 / sizeof(T);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  std::int64_t done = 0;
  if (packed) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.element[k] = value;
    const std::int64_t packs = offsets.count / kCount;
    for (std::int64_t p = i; p < packs; p += step) reinterpret_cast<Pack<T, kCount>*>(out)[p] = pack;
    done = packs * kCount;
  }
  for (i += done; i < offsets.count; i += step) out[offsets.at(i).view[0]] = value;
}

struct Range {
  double start, step;
  bool whole;  // both are integers

  template <class T>
  __device__ T at(std::int64_t i) const {
    if constexpr (std::is_same_v<T, std::int64_t>)
      if (whole)  // exact beyond 2^53
        return functors::plus(static_cast<std::int64_t>(start), functors::times(i, static_cast<std::int64_t>(step)));
    const double value = start + static_cast<double>(i) * step;
    if constexpr (std::is_same_v<Compute<T>, T>)
      return functors::convert<T>(value);
    else
      return narrow<T>(static_cast<float>(value));
  }
};

// `packs`: how many of them come first; the rest is written one by one.
template <class T>
__global__ void __launch_bounds__(kThreads)
    arange_kernel(T* out, std::int64_t count, std::int64_t packs, std::int64_t stride, const Range range) {
  constexpr int kCount = kPack<T>;
  const std::int64_t grid = static_cast<std::int64_t>(gridDim.x) * kThreads,
                     first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t p = first; p < packs; p += grid) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int k = 0; k < kCount; ++k) pack.element[k] = range.at<T>(p * kCount + k);
    reinterpret_cast<Pack<T, kCount>*>(out)[p] = pack;
  }
  for (std::int64_t i = packs * kCount + first; i < count; i += grid) out[i * stride] = range.at<T>(i);
}

// A tile has kSize x kSize elements: rows along the fastest dimension of `out`, which `in` has far apart, columns along
// the fastest of `in`. Its rows in shared memory are one bank longer than they must be: a column is in all banks.
template <class T>
struct TransposeTile {
  static constexpr int kSize = sizeof(T) == 8 ? 32 : 64;
  static constexpr int kPitch = kSize + (sizeof(T) < 4 ? static_cast<int>(4 / sizeof(T)) : 1);
  static constexpr int kStep = kThreads / kSize;
};
struct Transposed {
  std::int64_t rows, columns;
  std::int64_t row_stride, column_stride;  // of `in` along its rows, of `out` along its columns; the others are 1
  std::int64_t tiles;
  Splitter by_row_tiles, by_column_tiles;
  Offsets<2> others;  // dimensions: in `out`, in `in`
};

template <class T>  // an unsigned integer
__global__ void __launch_bounds__(kThreads) transpose_kernel(const T* in, T* out, const Transposed s) {
  using Tile = TransposeTile<T>;
  constexpr int kSize = Tile::kSize, kPitch = Tile::kPitch, kStep = Tile::kStep, kEach = kSize / kStep;
  __shared__ T tile[kSize * kPitch];
  const int fast = static_cast<int>(threadIdx.x) % kSize, slow = static_cast<int>(threadIdx.x) / kSize;
  for (std::int64_t n = blockIdx.x; n < s.tiles; n += gridDim.x) {
    std::int64_t row_tile, column_tile;
    const At<2> begin = s.others.at(s.by_column_tiles.split(s.by_row_tiles.split(n, &row_tile), &column_tile));
    const std::int64_t first_row = row_tile * kSize, first_column = column_tile * kSize;
    const T* from = in + begin.view[1] + first_column + fast;
    const bool inside = first_column + fast < s.columns;
    T held[kEach];  // all under way before the first is needed
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (const std::int64_t row = first_row + slow + k * kStep; inside && row < s.rows)
        held[k] = from[row * s.row_stride];
    __syncthreads();  // the last tile has been used
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (inside && first_row + slow + k * kStep < s.rows) tile[(slow + k * kStep) * kPitch + fast] = held[k];
    __syncthreads();
    if (first_row + fast >= s.rows) continue;
    T* to = out + begin.view[0] + first_row + fast;
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (const std::int64_t column = first_column + slow + k * kStep; column < s.columns)
        to[column * s.column_stride] = tile[fast * kPitch + slow + k * kStep];
  }
}

}  // namespace

bool transpose(const Stream& stream, const char* op, const View& in, const View& out) {
  constexpr std::int64_t kShortest = 16;  // shorter ones leave most of a tile empty
  const LoopNest<2> nest = make_loop_nest<2>(out.shape, {&out, &in});
  if (nest.empty || nest.rank < 2 || nest.strides[0][0] != 1 || nest.strides[0][1] <= 1) return false;
  int d = 1;
  while (d < nest.rank && nest.strides[d][1] != 1) ++d;
  if (d == nest.rank || nest.sizes[0] < kShortest || nest.sizes[d] < kShortest) return false;
  LoopNest<2> others;
  for (int i = 1; i < nest.rank; ++i) {
    if (i == d) continue;
    others.sizes[others.rank] = nest.sizes[i];
    for (std::size_t v = 0; v < 2; ++v) others.strides[others.rank][v] = nest.strides[i][v];
    ++others.rank;
  }
  Transposed s{.rows = nest.sizes[0],
               .columns = nest.sizes[d],
               .row_stride = nest.strides[0][1],
               .column_stride = nest.strides[d][0],
               .tiles = 0,
               .by_row_tiles = {},
               .by_column_tiles = {},
               .others = Offsets<2>(others)};
  dispatch_size(out.dtype, [&]<class T>(Type<T>) {
    constexpr std::int64_t kSize = TransposeTile<T>::kSize;
    const std::int64_t row_tiles = (s.rows + kSize - 1) / kSize, column_tiles = (s.columns + kSize - 1) / kSize;
    s.tiles = row_tiles * column_tiles * s.others.count;
    s.by_row_tiles = Splitter(row_tiles, s.tiles), s.by_column_tiles = Splitter(column_tiles, s.tiles);
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(s.tiles, 1 << 30));
    launch(stream, op, transpose_kernel<T>, Grid{dim3(blocks)}, static_cast<const T*>(in.data),
           static_cast<T*>(out.data), s);
  });
  return true;
}

void Kernels::enqueue(const Stream& stream, const WhereArgs& args) {
  dispatch_size(args.out.view.dtype, [&]<class T>(Type<T>) {
    elementwise(stream, WhereArgs::kName, Where<T>{}, {&args.condition.view, &args.x.view, &args.y.view},
                args.out.view);
  });
}

void Kernels::enqueue(const Stream& stream, const FillArgs& args) {
  const View& out = args.out.view;
  const Offsets<1> offsets = make_offsets<1>(out.shape, {&out});
  if (offsets.count == 0) return;
  // The bits of one element.
  std::uint64_t bits = 0;
  dispatch(out.dtype, [&]<class T>(Type<T>) {
    T value;
    if constexpr (std::is_same_v<T, std::int64_t>)
      value = args.integer;
    else
      value = functors::convert<T>(args.value);
    std::memcpy(&bits, &value, sizeof value);
  });
  dispatch_size(out.dtype, [&]<class T>(Type<T>) {
    constexpr int kCount = 16 / sizeof(T);
    const bool packed = offsets.rank == 1 && offsets.strides[0][0] == 1 && aligned_for(out.data, out.dtype, kCount);
    launch(stream, FillArgs::kName, fill_kernel<T>,
           grid_for(stream, packed ? offsets.count / kCount + kCount : offsets.count), static_cast<T*>(out.data),
           static_cast<T>(bits), packed, offsets);
  });
}

void Kernels::enqueue(const Stream& stream, const ArangeArgs& args) {
  const View& out = args.out.view;
  if (out.dtype == DType::boolean) [[unlikely]]
    fail_dtype(ArangeArgs::kName, DType::boolean, stream);
  const std::int64_t count = out.shape[0];
  if (count == 0) return;
  const bool whole = std::trunc(args.start) == args.start && std::trunc(args.step) == args.step;
  dispatch(out.dtype, [&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      const bool packed = out.strides[0] == 1 && aligned_for(out.data, out.dtype, kPack<T>);
      launch(stream, ArangeArgs::kName, arange_kernel<T>, grid_for(stream, packed ? count / kPack<T> + 1 : count),
             static_cast<T*>(out.data), count, packed ? count / kPack<T> : 0, out.strides[0],
             Range{args.start, args.step, whole});
    }
  });
}

void list_copy(KernelList& list) {
  for_sizes([&]<class T>(Type<T>) {
    list_elementwise<Where<T>>(list);
    list.add(fill_kernel<T>);
    list.add(transpose_kernel<T>);
  });
  for_all([&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>) list.add(arange_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
