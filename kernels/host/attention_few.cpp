#include "lockstep/kernels/host/attention_few.h"

#include "lockstep/kernels/host/maximum.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/sums.h"

namespace lockstep::kernels::host {
namespace {

constexpr std::int64_t kKeys = 128;  // of a block: what the second query reads again is in the second-level cache
// Multiplications of a piece; each reads an element of memory.
constexpr std::int64_t kPieceWork = std::int64_t{1} << 17;

// Elements of the 16 bytes within which shuffles are cheap.
template <class C>
constexpr int kGroup = 16 / sizeof(C);

// In each group of 16 bytes: the sums of neighbours in a, then of those in b.
template <class C>
Vector<C> add_pairs(const Vector<C>& a, const Vector<C>& b) {
  constexpr int width = kWidth<C>, group = kGroup<C>, half = group / 2;
  return [&]<int... E>(std::integer_sequence<int, E...>) {
    constexpr auto at = [](int e) { return (e % group < half ? 0 : width) + e / group * group + e % half * 2; };
    return __builtin_shufflevector(a, b, at(E)...) + __builtin_shufflevector(a, b, at(E) + 1 ...);
  }
  (std::make_integer_sequence<int, kWidth<C>>{});
}

// scores[j] = q . k[j] for `size` elements, a multiple of kColumns.
template <class C>
void dot_rows(const C* q, Rows<C> k, std::int64_t count, std::int64_t size, C* scores) {
  constexpr int kTogether = kGroup<C>;
  for (std::int64_t j = 0; j < count; j += kTogether) {
    const C* rows[std::size_t{kTogether}];
    for (int n = 0; n < kTogether; ++n) rows[n] = k.from(std::min(j + n, count - 1)).data;
    Vector<C> sums[std::size_t{kTogether}] = {};
    for (std::int64_t d = 0; d < size; d += kWidth<C>) {
      const Vector<C> x = load(q + d);
      for (int n = 0; n < kTogether; ++n) sums[n] = multiply_add_each<C>(x, load(rows[n] + d), sums[n]);
    }
    Vector<C> joined;
    if constexpr (kTogether == 4)
      joined = add_pairs<C>(add_pairs<C>(sums[0], sums[1]), add_pairs<C>(sums[2], sums[3]));
    else
      joined = add_pairs<C>(sums[0], sums[1]);
    C parts[kWidth<C>];
    store<C>(joined, parts);
    for (int n = 0; n < kTogether && j + n < count; ++n) {
      C score = parts[n];
      for (int g = kGroup<C>; g < kWidth<C>; g += kGroup<C>) score += parts[g + n];
      scores[j + n] = score;
    }
  }
}

// sums = keep * sums + p @ v for `Vectors` vectors of columns.
template <int Vectors, class C>
void add_columns(const C* p, Rows<C> v, std::int64_t count, C* sums, C keep) {
  Vector<C> total[std::size_t{Vectors}];
  const auto each = [](auto&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
    (std::make_integer_sequence<int, Vectors>{});
  };
  each([&](auto i) { total[i] = keep == C(0) ? Vector<C>{} : keep * load(sums + i * kWidth<C>); });
  for (std::int64_t j = 0; j < count; ++j, v.data += v.stride)
    each([&](auto i) { total[i] = multiply_add(p[j], load(v.data + i * kWidth<C>), total[i]); });
  each([&](auto i) { store<C>(total[i], sums + i * kWidth<C>); });
}
template <class C>
void add_values(const C* p, Rows<C> v, std::int64_t count, std::int64_t size, C* sums, C keep) {
  constexpr std::int64_t kWide = 8 * kWidth<C>;
  for (; size >= kWide; size -= kWide, v.data += kWide, sums += kWide) add_columns<8>(p, v, count, sums, keep);
  for (; size > 0; size -= kColumns<C>, v.data += kColumns<C>, sums += kColumns<C>)
    add_columns<2>(p, v, count, sums, keep);
}

// One query and what it has summed so far.
template <class C>
struct Query {
  C *q, *sums;
  C top = -kInfinity<C>;
  double total = 0;
};

// Minus infinity where the mask hides a key; what a floating mask has is added.
template <class C>
void apply_mask(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t first,
                std::int64_t count, C* scores) {
  const View& mask = p.mask;
  const std::int64_t begin = b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2] + first * mask.strides[3];
  if (mask.dtype == DType::boolean) {
    const bool* in = static_cast<const bool*>(mask.data) + begin;
    for (std::int64_t j = 0; j < count; ++j)
      scores[j] = math::select(in[j * mask.strides[3]], scores[j], -kInfinity<C>);
    return;
  }
  dispatch_floating(mask.dtype, [&]<class T>(Type<T>) {
    const T* bias = static_cast<const T*>(mask.data) + begin;
    for (std::int64_t j = 0; j < count; ++j)
      scores[j] += static_cast<C>(static_cast<functors::Compute<T>>(bias[j * mask.strides[3]]));
  });
}

// The queries of the heads that have the keys of head g; `memory`: for a row of queries and one of sums each.
template <class C>
void attend_head(const AttentionArgs& a, const AttentionProblem& p, std::int64_t b, std::int64_t g, Heads<C>& keys,
                 Heads<C>& values, C* memory) {
  const std::int64_t rows = p.group() * p.queries, key_row = padded<C>(p.key_size), value_row = padded<C>(p.value_size);
  C scores[kKeys], factors[kKeys];
  Query<C> queries[kFewQueries];
  const std::int64_t length = p.length(b), head0 = g * p.group();
  for (std::int64_t r = 0; r < rows; ++r) {
    C* q = memory + r * (key_row + value_row);
    queries[r] = {q, q + key_row};
    read_row(a.q.view, b, head0 + r / p.queries, r % p.queries, q, key_row);
    for (std::int64_t d = 0; d < key_row; ++d) q[d] *= static_cast<C>(p.scale);
    std::fill_n(q + key_row, value_row, C(0));
  }
  const std::int64_t most = p.seen(p.queries - 1, length);
  for (std::int64_t j = 0; j < most; j += kKeys) {
    const std::int64_t block = std::min(kKeys, most - j);
    const Rows<C> k = keys.rows(b, g, j, block), v = values.rows(b, g, j, block);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t h = head0 + r / p.queries, i = r % p.queries, n = std::min(block, p.seen(i, length) - j);
      if (n <= 0) continue;
      Query<C>& query = queries[r];
      dot_rows(query.q, k, n, key_row, scores);
      if (p.mask.present) apply_mask(p, b, h, i, j, n, scores);
      const C top = functors::larger(maximum(scores, n), query.top);
      if (top == -kInfinity<C>) continue;  // no key so far
      LOCKSTEP_INDEPENDENT
      for (std::int64_t c = 0; c < n; ++c) scores[c] = math::exp_of_negative(scores[c] - top);
      const C shrink = math::exp_of_negative(query.top - top);
      query.total = query.total * static_cast<double>(shrink) + sum(scores, n);
      query.top = top;
      if (p.dropout.p > 0) {
        make_factors(p, b, h, i, j, n, factors, 1);
        for (std::int64_t c = 0; c < n; ++c) scores[c] *= factors[c];
      }
      add_values(scores, v, n, value_row, query.sums, shrink);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t h = head0 + r / p.queries, i = r % p.queries;
    finish(a, b, h, i, queries[r].sums, queries[r].top, queries[r].total);
  }
}

}  // namespace

template <class C>
void attend_few(const AttentionArgs& a, const AttentionProblem& p) {
  const std::int64_t rows = p.group() * p.queries, heads = p.batch * p.kv_heads;
  const std::int64_t cost = rows * p.keys * (padded<C>(p.key_size) + padded<C>(p.value_size));
  for_pieces(heads, piece_rows(heads, cost, kPieceWork), [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    Heads<C> keys(a.k.view, kKeys, scratch, &p.block_table), values(a.v.view, kKeys, scratch, &p.block_table);
    C* memory = scratch.take<C>(rows * (padded<C>(p.key_size) + padded<C>(p.value_size)));
    for (std::int64_t head = begin; head < end; ++head)
      attend_head(a, p, head / p.kv_heads, head % p.kv_heads, keys, values, memory);
  });
}

template void attend_few<float>(const AttentionArgs&, const AttentionProblem&);
template void attend_few<double>(const AttentionArgs&, const AttentionProblem&);

}  // namespace lockstep::kernels::host
