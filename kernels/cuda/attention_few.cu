// Attention of a few queries, as decoding has them. A block has the queries of all query heads that go with one head of
// keys, and a part of the keys: keys and values are read once. A second kernel joins the parts, in their order; how
// many there are follows from the sizes.
#include "lockstep/kernels/cuda/attention.cuh"
#include "lockstep/kernels/cuda/attention_way.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

// What a block makes of its keys, for each part, unit and row: the largest score, the sum of the exponentials, and the
// sums of values, [parts][units][rows][value_size].
template <class C>
struct FewParts {
  C *tops, *totals, *sums;
};

// Heads of keys are numbered over the batch; a row is a query of one of the heads of queries that go with it.
template <class T>
struct FewProblem : AttentionProblem<T> {
  static constexpr int kTile = sizeof(Compute<T>) == 8 ? 32 : 64;  // keys that a block has at a time
  static constexpr int kCount = kPack<T>;

  int rows, key_packs, value_packs, value_groups;  // groups of threads that each have the packs of a row of values
  std::int64_t units, parts, part;                 // part: keys of a block
  bool keys_packed, values_packed;
  Splitter by_unit, by_query;
  Divider by_key_packs, by_value_packs;

  FewProblem(const AttentionArgs& args, const Stream& stream) : AttentionProblem<T>(args, stream) {
    rows = static_cast<int>(this->group * this->queries);
    const auto packs = [](std::int64_t size) { return static_cast<int>((size + kCount - 1) / kCount); };
    key_packs = packs(this->key_size), value_packs = packs(this->value_size);
    value_groups = kThreads / value_packs;
    units = this->batch * this->kv_heads;
    // Blocks for all multiprocessors of a large device, each with a few tiles at least.
    constexpr std::int64_t kBlocks = 512, kMostParts = 64;
    const std::int64_t most = (this->keys + 4 * kTile - 1) / (4 * kTile);
    parts = std::clamp<std::int64_t>((kBlocks + units - 1) / units, 1, std::min(most, kMostParts));
    part = ((this->keys + parts - 1) / parts + kTile - 1) / kTile * kTile;
    parts = (this->keys + part - 1) / part;
    const auto packed = [](const View& view) {
      bool whole = view.strides[3] == 1 && view.shape[3] % kCount == 0 && aligned_for(view.data, view.dtype, kCount);
      for (int d = 0; d < 3; ++d) whole = whole && view.strides[d] % kCount == 0;
      return whole;
    };
    keys_packed = packed(args.k.view), values_packed = packed(args.v.view);
    by_unit = Splitter(this->kv_heads, units);
    by_query = Splitter(this->queries, rows);
    by_key_packs = Divider(key_packs), by_value_packs = Divider(value_packs);
  }
  // Of a row of keys in shared memory, in packs. Odd: threads that read one pack of their rows each hit all banks.
  LOCKSTEP_HD int key_pitch() const { return key_packs | 1; }
  int tile_bytes() const {
    const int tile = kTile * key_pitch() * static_cast<int>(sizeof(Pack<T, kCount>));
    return std::max(tile, kThreads * kCount * static_cast<int>(sizeof(Compute<T>)));
  }

  // Where key j of a sequence lies, of what is read by `from`; -1 when its page is not there.
  __device__ std::int64_t place(const HeadStrides& s, std::int64_t b, std::int64_t g, std::int64_t j) const {
    if (!this->table.data) return b * s.batch + g * s.head + j * s.row;
    std::int64_t row;
    const std::int64_t at = this->by_page.split(j, &row);
    const std::int64_t page_at = this->table[b * this->table_row + at * this->table_column];
    if (is_inside(page_at, this->pages)) return page_at * s.batch + g * s.head + row * s.row;
    report_index(this->report, this->op, page_at, this->pages);
    return -1;
  }
  // A pack of the row at `place`; zeros where there is nothing.
  __device__ static Pack<T, kCount> load(const Heads<T>& from, bool packed, std::int64_t place, int pack,
                                         std::int64_t size) {
    Pack<T, kCount> result{};
    if (place < 0) return result;
    if (packed) return *reinterpret_cast<const Pack<T, kCount>*>(from.data + place + pack * kCount);
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      if (const std::int64_t at = pack * kCount + k; at < size)
        result.element[k] = from.data[place + at * from.strides.column];
    return result;
  }
};

// Blocks on a multiprocessor, at least. Two have more loads under way; the sums of eight queries in 16 bits, which come
// in packs of eight, and those in f64 leave no registers for that.
template <class T, int kRows>
inline constexpr int kFewBlocks = sizeof(T) == 4 || (sizeof(T) == 2 && kRows < 8) ? 2 : 1;

template <class T, int kRows>
__global__ void __launch_bounds__(kThreads, kFewBlocks<T, kRows>)
    attention_few_kernel(const FewProblem<T> a, const FewParts<Compute<T>> to, T* out, Compute<T>* lse,
                         int tile_bytes) {
  using F = FewProblem<T>;
  using C = Compute<T>;
  constexpr int kTile = F::kTile, kCount = F::kCount, kShares = kThreads / kTile, kLanes = kThreads / kRows;
  using P = Pack<T, kCount>;
  using Q = Pack<C, kCount>;
  auto* memory = dynamic_shared<unsigned char>();
  P* tile = reinterpret_cast<P*>(memory);
  C* joined = reinterpret_cast<C*>(memory);  // in the place of the tile: what the groups of threads have summed
  Q* queries = reinterpret_cast<Q*>(memory + tile_bytes);           // [kRows][key_packs]
  C* shares = reinterpret_cast<C*>(queries + kRows * a.key_packs);  // [kShares][kRows][kTile]: of products
  C* scores = shares + kShares * kRows * kTile;                     // [kRows][kTile], then probabilities
  C* shrinks = scores + kRows * kTile;                              // [kRows]
  auto* key_places = reinterpret_cast<std::int64_t*>(shrinks + 8);  // [kTile]
  std::int64_t* value_places = key_places + kTile;                  // [kTile]
  std::int64_t* seen = value_places + kTile;                        // [kRows]

  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t unit = blockIdx.x;
  std::int64_t g;
  const std::int64_t b = a.by_unit.split(unit, &g), length = a.length(b);
  const auto place_of_row = [&](int row, std::int64_t* i) { return g * a.group + a.by_query.split(row, i); };
  for (int n = thread; n < kRows * a.key_packs; n += kThreads) {
    const int row = static_cast<int>(a.by_key_packs.divide(static_cast<std::uint32_t>(n)));
    std::int64_t i;
    const std::int64_t h = place_of_row(row, &i);
    const std::int64_t at = row < a.rows ? b * a.q.strides.batch + h * a.q.strides.head + i * a.q.strides.row : -1;
    const P pack = F::load(a.q, false, at, n - row * a.key_packs, a.key_size);
#pragma unroll
    for (int k = 0; k < kCount; ++k) queries[n].element[k] = widen(pack.element[k]);
  }
  // Threads of a row, in the softmax.
  const int row = thread / kLanes, lane = thread % kLanes;
  std::int64_t row_query;
  const std::int64_t row_head = place_of_row(row, &row_query);
  const std::int64_t row_seen = row < a.rows ? a.seen(row_query, length) : 0;
  if (lane == 0) seen[row] = row_seen;
  __syncthreads();
  std::int64_t end = (blockIdx.y + 1) * a.part, limit = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) limit = seen[r] > limit ? seen[r] : limit;
  if (end > limit) end = limit;

  C top = -F::infinity(), total = 0;  // total: of the thread's keys
  C sums[kRows][kCount] = {};
  const int value_group = static_cast<int>(a.by_value_packs.divide(static_cast<std::uint32_t>(thread)));
  const int value_pack = thread - value_group * a.value_packs;
  for (std::int64_t first = blockIdx.y * a.part; first < end; first += kTile) {
    const int count = end - first < kTile ? static_cast<int>(end - first) : kTile;
    __syncthreads();  // the last tile has been used
    if (thread < count) {
      key_places[thread] = a.place(a.k.strides, b, g, first + thread);
      value_places[thread] = a.place(a.v.strides, b, g, first + thread);
    }
    __syncthreads();
    constexpr int kAhead = 4;
    for (int n = thread; n < count * a.key_packs; n += kAhead * kThreads) {
      P ahead[kAhead];
      int at[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int m = n + u * kThreads;
        const int key = static_cast<int>(a.by_key_packs.divide(static_cast<std::uint32_t>(m)));
        const int pack = m - key * a.key_packs;
        at[u] = key * a.key_pitch() + pack;
        if (key < count) ahead[u] = F::load(a.k, a.keys_packed, key_places[key], pack, a.key_size);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (n + u * kThreads < count * a.key_packs) tile[at[u]] = ahead[u];
    }
    __syncthreads();
    {  // Each thread has a share of the products of one key with all queries.
      const int key = thread % kTile, share = thread / kTile;
      C product[kRows] = {};
      for (int p = share; p < a.key_packs; p += kShares) {
        const P pack = tile[key * a.key_pitch() + p];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const Q query = queries[r * a.key_packs + p];
#pragma unroll
          for (int k = 0; k < kCount; ++k) product[r] += query.element[k] * widen(pack.element[k]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) shares[(share * kRows + r) * kTile + key] = product[r];
    }
    __syncthreads();
    for (int c = lane; c < kTile; c += kLanes) {
      C sum = 0;
      for (int s = 0; s < kShares; ++s) sum += shares[(s * kRows + row) * kTile + c];
      scores[row * kTile + c] =
          first + c < row_seen ? a.score(b, row_head, row_query, first + c, length, sum) : -F::infinity();
    }
    __syncthreads();
    C next = top;
#pragma unroll
    for (int c = 0; c < kTile; ++c) next = functors::larger(scores[row * kTile + c], next);
    const bool empty = next == -F::infinity();
    const C shrink = empty ? C(1) : math::exp(top - next);
    top = next;
    total *= shrink;
    __syncthreads();
    for (int c = lane; c < kTile; c += kLanes) {
      const C p = empty ? C(0) : math::exp(scores[row * kTile + c] - next);
      scores[row * kTile + c] = p;
      total += p;
    }
    if (lane == 0) shrinks[row] = shrink;
    __syncthreads();
    if (value_group < a.value_groups) {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[r][k] *= shrinks[r];
      for (int c = value_group; c < count; c += kAhead * a.value_groups) {
        P ahead[kAhead];
#pragma unroll
        for (int u = 0; u < kAhead; ++u)
          if (const int key = c + u * a.value_groups; key < count)
            ahead[u] = F::load(a.v, a.values_packed, value_places[key], value_pack, a.value_size);
#pragma unroll
        for (int u = 0; u < kAhead; ++u) {
          const int key = c + u * a.value_groups;
          if (key >= count) break;
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const C p = scores[r * kTile + key];
#pragma unroll
            for (int k = 0; k < kCount; ++k) sums[r][k] += p * widen(ahead[u].element[k]);
          }
        }
      }
    }
  }

  // All lanes of a row have its largest score, each the sum of its own keys.
  __syncthreads();
  shares[thread] = total;
  if (lane == 0) shrinks[row] = top;
  __syncthreads();
  const int padded = a.value_packs * kCount;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= a.rows) break;
    if (value_group < a.value_groups)
#pragma unroll
      for (int k = 0; k < kCount; ++k) joined[value_group * padded + value_pack * kCount + k] = sums[r][k];
    C all = 0;
    for (int n = 0; n < kLanes; ++n) all += shares[r * kLanes + n];
    __syncthreads();
    const C share = all == C(0) ? C(0) : C(1) / all;
    std::int64_t i;
    const std::int64_t h = place_of_row(r, &i), to_row = (b * a.heads + h) * a.queries + i;
    const std::int64_t part_row = (blockIdx.y * a.units + unit) * a.rows + r;
    for (int e = thread; e < a.value_size; e += kThreads) {
      C sum = 0;
      for (int n = 0; n < a.value_groups; ++n) sum += joined[n * padded + e];
      if (a.parts == 1)
        out[to_row * a.value_size + e] = narrow<T>(sum * share);
      else
        to.sums[part_row * a.value_size + e] = sum;
    }
    if (thread == 0) {
      if (a.parts == 1)
        lse[to_row] = all == C(0) ? F::infinity() : shrinks[r] + math::log(all);
      else
        to.tops[part_row] = shrinks[r], to.totals[part_row] = all;
    }
    __syncthreads();
  }
}

// A thread for each element of `out`.
template <class T>
__global__ void __launch_bounds__(kThreads)
    attention_join_kernel(const FewProblem<T> a, const FewParts<Compute<T>> from, T* out, Compute<T>* lse,
                          std::int64_t count, const Splitter by_element, const Splitter by_row) {
  using F = FewProblem<T>;
  using C = Compute<T>;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= count) return;
  std::int64_t e, row, g, i;
  const std::int64_t unit = by_row.split(by_element.split(n, &e), &row), rows = a.units * a.rows;
  const std::int64_t at = unit * a.rows + row, b = a.by_unit.split(unit, &g);
  const std::int64_t h = g * a.group + a.by_query.split(row, &i), to_row = (b * a.heads + h) * a.queries + i;
  C top = -F::infinity();
  for (std::int64_t p = 0; p < a.parts; ++p) top = functors::larger(from.tops[p * rows + at], top);
  const bool empty = top == -F::infinity();
  C total = 0, sum = 0;
#pragma unroll 4
  for (std::int64_t p = 0; p < a.parts; ++p) {
    const C weight = empty ? C(0) : math::exp(from.tops[p * rows + at] - top);
    total += weight * from.totals[p * rows + at];
    sum += weight * from.sums[(p * rows + at) * a.value_size + e];
  }
  out[to_row * a.value_size + e] = narrow<T>(total == C(0) ? C(0) : sum / total);
  if (e == 0) lse[to_row] = total == C(0) ? F::infinity() : top + math::log(total);
}

template <class F>
void dispatch_rows(int rows, F&& f) {
  if (rows == 1)
    f(std::integral_constant<int, 1>());
  else if (rows <= 4)
    f(std::integral_constant<int, 4>());
  else
    f(std::integral_constant<int, 8>());
}

}  // namespace

void attention_of_few(const Stream& stream, const AttentionArgs& args) {
  const trace::WorkScope scope(stream, {.name = "attention of few queries", .kind = trace::Kind::kernel});
  constexpr const char* kName = AttentionArgs::kName;
  dispatch_floating(args.q.view.dtype, [&]<class T>(Type<T>) {
    using C = Compute<T>;
    const FewProblem<T> a(args, stream);
    Scratch scratch(stream);
    FewParts<C> parts{};
    const std::int64_t part_rows = a.parts * a.units * a.rows;
    if (a.parts > 1)
      parts = {scratch.take<C>(part_rows), scratch.take<C>(part_rows), scratch.take<C>(part_rows * a.value_size)};
    dispatch_rows(a.rows, [&]<int kRows>(std::integral_constant<int, kRows>) {
      const std::size_t numbers = std::size_t{kRows} * static_cast<std::size_t>(a.key_packs * kPack<T>) +
                                  std::size_t{kRows} * kThreads + std::size_t{kRows} * FewProblem<T>::kTile + 8;
      const std::size_t bytes = static_cast<std::size_t>(a.tile_bytes()) + numbers * sizeof(C) +
                                (2 * FewProblem<T>::kTile + kRows) * sizeof(std::int64_t);
      const Grid grid{dim3(static_cast<unsigned>(a.units), static_cast<unsigned>(a.parts)), dim3(kThreads), bytes};
      launch(stream, kName, attention_few_kernel<T, kRows>, grid, a, parts, data<T>(args.out), data<C>(args.lse),
             a.tile_bytes());
    });
    if (a.parts == 1) return;
    const std::int64_t count = a.units * a.rows * a.value_size;
    launch(stream, kName, attention_join_kernel<T>,
           Grid{dim3(static_cast<unsigned>((count + kThreads - 1) / kThreads))}, a, parts, data<T>(args.out),
           data<C>(args.lse), count, Splitter(a.value_size, count), Splitter(a.rows, a.units * a.rows));
  });
}

void list_attention_few(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(attention_few_kernel<T, 1>);
    list.add(attention_few_kernel<T, 4>);
    list.add(attention_few_kernel<T, 8>);
    list.add(attention_join_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
