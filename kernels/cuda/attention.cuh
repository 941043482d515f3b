// What the kernels of attention share. A block of threads takes a tile of kTile queries (backward for keys and values:
// of keys) of one head and goes through the tiles of the other side. kLanes neighbouring threads work on one row: each
// has kEach elements of the row of scores, and every kLanes-th element of the rows of vectors. All tiles are in shared
// memory, in the type that computes; their rows are one element longer than they must be, against bank conflicts.
#pragma once

#include <limits>

#include "lockstep/kernels/common/attention.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/cuda/report.cuh"
#include "lockstep/kernels/philox.h"

namespace lockstep::kernels::cuda {

inline constexpr std::int64_t kMostHeadSize = 256;  // what fits the shared memory of a block

// [B, H, rows, columns] with any strides.
struct HeadStrides {
  std::int64_t batch, head, row, column;
};
inline HeadStrides head_strides(const View& v) { return {v.strides[0], v.strides[1], v.strides[2], v.strides[3]}; }

template <class T>
struct Heads {
  const T* data;
  HeadStrides strides;
  explicit Heads(const View& v) : data(static_cast<const T*>(v.data)), strides(head_strides(v)) {}
};

// i32 or i64; null: absent.
struct Integers {
  const void* data;
  bool narrow;
  explicit Integers(const View& v) : data(v.present ? v.data : nullptr), narrow(v.dtype == DType::i32) {}
  __device__ std::int64_t operator[](std::int64_t at) const {
    return narrow ? static_cast<const std::int32_t*>(data)[at] : static_cast<const std::int64_t*>(data)[at];
  }
};

enum class MaskKind : int { none, allowed, added };

template <class T>
struct AttentionProblem : AttentionSizes {
  using C = Compute<T>;
  static constexpr int kTile = sizeof(C) == 8 ? 16 : 32;
  static constexpr int kLanes = kThreads / kTile;
  static constexpr int kEach = kTile / kLanes;

  Heads<T> q, k, v;
  std::int64_t group;  // heads of queries for one of keys and values
  C scale;
  bool causal;
  CausalVariant variant;
  Integers lengths, table;
  std::int64_t length_stride, table_row, table_column, pages;
  Splitter by_page;
  int op;  // that a report names
  lockstep::cuda::KernelReport* report;
  MaskKind mask_kind;
  const void* mask;
  HeadStrides mask_strides;
  bool drops;
  std::uint64_t threshold, random_key, random_stream;
  const std::uint64_t* replayed;  // in the place of the last two
  C kept;                         // what a probability that is not dropped is multiplied with

  AttentionProblem(const AttentionArgs& a, const Stream& stream)
      : AttentionProblem(a, a.block_table.view, lockstep::cuda::report_attention, stream) {}
  AttentionProblem(const AttentionGradArgs& a, const Stream& stream)
      : AttentionProblem(a, View(), lockstep::cuda::report_attention_grad, stream) {}

  template <class Args>
  AttentionProblem(const Args& a, const View& block_table, int reported, const Stream& stream)
      : AttentionSizes(attention_sizes(a.q.view, a.k.view, a.v.view, block_table)),
        q(a.q.view),
        k(a.k.view),
        v(a.v.view),
        group(kv_heads > 0 ? heads / kv_heads : 1),
        scale(static_cast<C>(a.scale)),
        causal(a.causal),
        variant(a.variant),
        lengths(a.seqlens_k.view),
        table(block_table),
        length_stride(a.seqlens_k.view.present ? a.seqlens_k.view.strides[0] : 0),
        table_row(block_table.present ? block_table.strides[0] : 0),
        table_column(block_table.present ? block_table.strides[1] : 0),
        pages(a.k.view.shape[0]),
        by_page(page, keys),
        op(reported),
        report(lockstep::cuda::kernel_report(stream.device())),
        mask_kind(!a.mask.view.present                  ? MaskKind::none
                  : a.mask.view.dtype == DType::boolean ? MaskKind::allowed
                                                        : MaskKind::added),
        mask(a.mask.view.data),
        mask_strides(a.mask.view.present ? head_strides(a.mask.view) : HeadStrides{}),
        drops(a.dropout.p > 0),
        threshold(philox::threshold(1 - a.dropout.p)),
        random_key(a.dropout.key),
        random_stream(a.dropout.stream),
        replayed(a.dropout.replayed),
        kept(static_cast<C>(1 / (1 - a.dropout.p))) {}

  std::int64_t tiles(std::int64_t rows) const { return (rows + kTile - 1) / kTile; }

  __device__ static C infinity() { return std::numeric_limits<C>::infinity(); }

  // The keys of sequence b. One that cannot be is reported, and none at all.
  __device__ std::int64_t length(std::int64_t b) const {
    if (!lengths.data) return keys;
    const std::int64_t n = lengths[b * length_stride];
    if (is_inside(n, keys + 1)) return n;
    report_index(report, op, n, keys + 1);
    return 0;
  }
  __device__ std::int64_t seen(std::int64_t i, std::int64_t sequence_length) const {
    return seen_keys(causal, variant, i, queries, sequence_length);
  }

  // The score of a product; minus infinity where the query does not see the key.
  __device__ C score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t sequence_length,
                     C product) const {
    if (i >= queries || j >= seen(i, sequence_length)) return -infinity();
    const C s = product * scale;
    if (mask_kind == MaskKind::none) return s;
    const std::int64_t at =
        b * mask_strides.batch + h * mask_strides.head + i * mask_strides.row + j * mask_strides.column;
    if (mask_kind == MaskKind::allowed) return static_cast<const bool*>(mask)[at] ? s : -infinity();
    return s + widen(static_cast<const T*>(mask)[at]);
  }
  // What the dropout multiplies the probability with.
  __device__ C factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t at = ((b * heads + h) * queries + i) * keys + j;
    const philox::Block block =
        philox::block(static_cast<std::uint64_t>(at / 4), replayed ? replayed[1] : random_stream,
                      replayed ? replayed[0] : random_key);
    std::uint32_t word = block.words[0];  // chosen, not indexed: registers have no index
#pragma unroll
    for (int n = 1; n < 4; ++n)
      if (at % 4 == n) word = block.words[n];
    return word < threshold ? kept : C(0);
  }
};

// A tile of rows into shared memory; `find` says where row 0 … kTile - 1 begins, and null where zeros are to be. The
// whole block calls it. A warp takes whole rows, all of its rows at once: so loads are of neighbours, several are under
// way, and no place is divided by the size.
template <class T, class Find>
__device__ void load_rows(int size, std::int64_t column_stride, Compute<T>* to, Find&& find) {
  constexpr int kWarp = 32, kWarps = kThreads / kWarp, kRows = AttentionProblem<T>::kTile / kWarps;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* from[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) from[r] = find(warp + r * kWarps);
  for (int column = lane; column < size; column += kWarp) {
    Compute<T> value[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) value[r] = from[r] ? widen(from[r][column * column_stride]) : Compute<T>(0);
#pragma unroll
    for (int r = 0; r < kRows; ++r) to[(warp + r * kWarps) * (size + 1) + column] = value[r];
  }
}

// Rows first … first + kTile - 1 of a head, zeros behind the last one.
template <class T>
__device__ void load_tile(const Heads<T>& from, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows,
                          std::int64_t size, Compute<T>* to) {
  const T* head = from.data + b * from.strides.batch + h * from.strides.head;
  load_rows<T>(static_cast<int>(size), from.strides.column, to, [&](int row) {
    const std::int64_t i = first + row;
    return i < rows ? head + i * from.strides.row : nullptr;
  });
}

// The same of the keys or values of sequence b, which may lie in pages. A page that is not there is reported, and
// zeros.
template <class T>
__device__ void load_keys(const AttentionProblem<T>& a, const Heads<T>& from, std::int64_t b, std::int64_t g,
                          std::int64_t first, std::int64_t rows, std::int64_t size, Compute<T>* to) {
  if (!a.table.data) return load_tile(from, b, g, first, rows, size, to);
  load_rows<T>(static_cast<int>(size), from.strides.column, to, [&](int row) -> const T* {
    if (first + row >= rows) return nullptr;
    std::int64_t within;
    const std::int64_t at = a.by_page.split(first + row, &within);
    const std::int64_t at_page = a.table[b * a.table_row + at * a.table_column];
    if (is_inside(at_page, a.pages))
      return from.data + at_page * from.strides.batch + g * from.strides.head + within * from.strides.row;
    report_index(a.report, a.op, at_page, a.pages);
    return nullptr;
  });
}

template <class C>
__device__ C dot(const C* x, const C* y, int size) {
  C sum = 0;
  for (int d = 0; d < size; ++d) sum += x[d] * y[d];
  return sum;
}

// Throws NotSupported when a head is larger than shared memory allows.
template <class Args>
void check_head_size(const Args& args, const Stream& stream) {
  for (const View* view : {&args.q.view, &args.v.view})
    if (view->shape[3] > kMostHeadSize)
      lockstep::detail::fail<NotSupported>("[", Args::kName, "] expected heads of at most ", kMostHeadSize,
                                           " elements, got ", view->shape[3], " of ", view->dtype, " on ",
                                           stream.device());
}

}  // namespace lockstep::kernels::cuda
