// Attention as products of matrices, by cuBLASLt, with a softmax between them. The heads of keys, each with the query
// heads that go with it, are taken in ranges, and their scores in chunks of bounded size: [heads of keys][query heads]
// [queries][keys], where fewer than all queries of a head go with one query head at a time. In a chunk the rows of a
// head of keys are one matrix, so that keys are read once for all its query heads.
#pragma once

#include "lockstep/kernels/cuda/attention.cuh"
#include "lockstep/kernels/cuda/gemm.h"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {

// How much scratch memory the scores of a chunk may take, with all that is made of them: so little that they stay in
// the cache of the device (50 to 60 MB of an H100 or H200). Tests lower it, to see chunks.
inline std::int64_t scores_bytes = std::int64_t{32} << 20;
// But so many rows at least, and the memory grows with the keys, as the keys do: fewer leave tensor cores idle.
inline constexpr std::int64_t kFewestRows = 64;

// Scores lie in rows that begin at 16 bytes, also of the 16-bit types.
inline std::int64_t pitch_of(std::int64_t keys) { return (keys + 7) / 8 * 8; }

// Heads of keys are numbered over the batch: `unit` is b * kv_heads + g.
struct Chunk {
  std::int64_t unit, units, head, heads, query, queries;
  std::int64_t keys, pitch;                              // of a row: as many keys as one of its queries may see
  std::int64_t rows() const { return heads * queries; }  // of one unit
};

struct ChunkPlan {
  std::int64_t units, heads, queries;  // of a chunk, at most

  // `score_bytes`: what one score takes, with all that is made of it.
  ChunkPlan(const AttentionSizes& s, bool causal, std::int64_t score_bytes) {
    const std::int64_t group = s.heads / s.kv_heads;
    const std::int64_t fit = std::max(kFewestRows, scores_bytes / (pitch_of(s.keys) * score_bytes));
    queries = s.queries;
    // The early queries of a causal one see few keys: in four parts 5/8 of the square is computed, in one all of it.
    if (causal) queries = std::min(queries, std::max<std::int64_t>(256, (queries / 4 + 63) / 64 * 64));
    if (queries > fit) queries = fit / 64 * 64;
    heads = queries == s.queries ? std::clamp<std::int64_t>(fit / queries, 1, group) : 1;
    units = std::clamp<std::int64_t>(fit / (heads * queries), 1, s.batch * s.kv_heads);
  }
  // Calls f(chunk) for the chunks of a range of units.
  template <class Args, class F>
  void for_each(const AttentionSizes& s, const Args& args, std::int64_t unit, std::int64_t count, F&& f) const {
    const std::int64_t group = s.heads / s.kv_heads;
    for (std::int64_t h = 0; h < group; h += heads)
      for (std::int64_t i = 0; i < s.queries; i += queries) {
        const std::int64_t taken = std::min(queries, s.queries - i);
        // Of the longest sequence: lengths are known on the device alone. One key at least, that no query sees.
        const std::int64_t keys =
            std::max<std::int64_t>(1, seen_keys(args.causal, args.variant, i + taken - 1, s.queries, s.keys));
        f(Chunk{unit, count, h, std::min(heads, group - h), i, taken, keys, pitch_of(keys)});
      }
  }
};

// From the row of a chunk to its query.
struct ChunkRows {
  Chunk chunk;
  std::int64_t count;
  Splitter by_query, by_head, by_unit;

  ChunkRows(const Chunk& c, const AttentionSizes& s)
      : chunk(c),
        count(c.units * c.rows()),
        by_query(c.queries, count),
        by_head(c.heads, count),
        by_unit(s.kv_heads, s.batch * s.kv_heads) {}

  struct Place {
    std::int64_t b, h, i;
    std::int64_t row;  // of [B, H, T]
  };
  template <class Problem>
  __device__ Place place(const Problem& a, std::int64_t row) const {
    std::int64_t i, h, g;
    const std::int64_t unit = by_head.split(by_query.split(row, &i), &h);
    const std::int64_t b = by_unit.split(chunk.unit + unit, &g);
    h += g * a.group + chunk.head, i += chunk.query;
    return {b, h, i, (b * a.heads + h) * a.queries + i};
  }
};

// The scores of one query, without those that it does not see.
template <class T>
struct ScoreRow {
  using C = Compute<T>;
  static constexpr int kCount = kPack<T>;
  using P = Pack<C, kCount>;

  const C* scores;
  std::int64_t seen;
  MaskKind mask_kind;
  const void* mask;
  std::int64_t mask_column;

  __device__ ScoreRow(const AttentionProblem<T>& a, const ChunkRows& rows, const ChunkRows::Place& at, std::int64_t row,
                      bool inside, const C* all)
      : scores(all + row * rows.chunk.pitch),
        seen(inside ? a.seen(at.i, a.length(at.b)) : 0),
        mask_kind(a.mask_kind),
        mask(nullptr),
        mask_column(a.mask_strides.column) {
    if (seen > rows.chunk.keys) seen = rows.chunk.keys;
    const std::int64_t offset = at.b * a.mask_strides.batch + at.h * a.mask_strides.head + at.i * a.mask_strides.row;
    if (mask_kind == MaskKind::allowed) mask = static_cast<const bool*>(a.mask) + offset;
    if (mask_kind == MaskKind::added) mask = static_cast<const T*>(a.mask) + offset;
  }
  __device__ P load(std::int64_t j) const { return *reinterpret_cast<const P*>(scores + j); }
  // Of the pack from column j on, minus infinity where the query does not see the key.
  __device__ P masked(std::int64_t j, P pack) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (j + k >= seen)
        pack.element[k] = -AttentionProblem<T>::infinity();
      else if (mask_kind == MaskKind::added)
        pack.element[k] += widen(static_cast<const T*>(mask)[(j + k) * mask_column]);
      else if (mask_kind == MaskKind::allowed && !static_cast<const bool*>(mask)[(j + k) * mask_column])
        pack.element[k] = -AttentionProblem<T>::infinity();
    }
    return pack;
  }
};

// What a probability of 1 is stored as. In f16 small ones would lose digits, or be zero: it has room above 1.
template <class T>
inline constexpr double kOne = std::is_same_v<T, Half> ? 32768 : 1;

// Threads that take a row of scores, as a power of two: a warp at least, which waits for itself alone.
template <class T>
int row_shift(std::int64_t keys, int packs) {
  const std::int64_t elements = std::int64_t{kPack<T>} * packs;
  int shift = 5;
  while (shift < 8 && (elements << shift) < keys) ++shift;
  return shift;
}
template <class T>
Grid row_grid(std::int64_t rows, int shift) {
  const std::int64_t in_block = kThreads >> shift;
  return {dim3(static_cast<unsigned>((rows + in_block - 1) / in_block)), dim3(kThreads), kThreads * sizeof(Compute<T>)};
}

template <class C>
struct Sum {
  using Accumulator = C;
  __device__ C join(C a, C b) const { return a + b; }
};

// Heads of a range of units, as products read them: element [unit][head][row][column] of `data`.
struct HeadMatrices {
  void* data;
  DType dtype;
  std::int64_t unit, head, row, column, size;

  // Rows [first_row, first_row + rows) from head `first` on, of each of the units.
  GemmMatrix matrix(std::int64_t first, std::int64_t first_row, std::int64_t rows) const {
    const std::int64_t offset = (first * head + first_row * row) * static_cast<std::int64_t>(size_of(dtype));
    return {static_cast<std::byte*>(data) + offset, rows, size, row, column, unit};
  }
};

struct Want {
  bool without_padding = false;  // keys with zeros behind the length of their sequence: what lies there is not read
  bool wide = false;             // in the type that computes
};

// The heads of `view` for `units` from `unit` on, `heads` of each: as they lie, where products can read that and they
// are as wanted, else a packed copy. `folded`: the heads of a unit must be one matrix.
template <class T>
HeadMatrices head_matrices(const Stream& stream, const char* op, const AttentionProblem<T>& a, const View& view,
                           std::int64_t heads, std::int64_t unit, std::int64_t units, bool folded, Want want,
                           Scratch& scratch);

extern template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<float>&, const View&,
                                           std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);
extern template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<double>&, const View&,
                                           std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);
extern template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<Half>&, const View&,
                                           std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);
extern template HeadMatrices head_matrices(const Stream&, const char*, const AttentionProblem<BFloat16>&, const View&,
                                           std::int64_t, std::int64_t, std::int64_t, bool, Want, Scratch&);

// [units][rows][keys] in rows of `pitch`.
template <class E>
GemmMatrix score_matrix(E* data, const Chunk& c) {
  return {const_cast<std::remove_const_t<E>*>(data), c.rows(), c.keys, c.pitch, 1, c.rows() * c.pitch};
}

// scale * q k^T, in the type that computes.
template <class T>
void multiply_scores(const Stream& stream, const char* op, const GemmMatrix& q, const GemmMatrix& k, const Chunk& c,
                     double scale, Compute<T>* scores) {
  gemm(stream, op,
       Gemm{.in = dtype_of<T>(),
            .out = dtype_of<Compute<T>>(),
            .a = q,
            .b = k.transposed(),
            .c = score_matrix(scores, c),
            .batches = c.units,
            .alpha = scale});
}

}  // namespace lockstep::kernels::cuda
