// The ways to compute attention on CUDA, each against the host, with shapes that take it.
#include <limits>

#include "lockstep/kernels/cuda/attention_products.cuh"
#include "lockstep/kernels/cuda/attention_way.h"
#include "lockstep/runtime/trace/trace.h"
#include "support/parity.h"

using namespace lockstep;
using namespace support;
using kernels::AttentionSizes;
using kernels::cuda::attention_way;
using kernels::cuda::AttentionWay;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Mask { none, allowed, added };
struct Problem {
  std::int64_t batch, heads, kv_heads, queries, keys, key_size, value_size;
  Layout layout = Layout::contiguous;
  bool causal = false;
  CausalVariant variant = CausalVariant::upper_left;
  Mask mask = Mask::none;
  bool lengths = false;
  double dropout = 0;
  std::int64_t page = 0;
};

// The spans that begin with `attention ` or `attention_grad `: the way that was taken.
std::string way_of_trace() {
  trace::stop();
  std::string found;
  for (const trace::Span& span : trace::spans()) {
    const std::string name = span.work.name;
    if (name.starts_with("attention ") || name.starts_with("attention_grad ")) found += name + ";";
  }
  return found;
}

void fill_row(TestTensor& t, std::int64_t row, double value) {
  const std::int64_t size = t.shape()[3];
  for (std::int64_t n = row * size; n < (row + 1) * size; ++n) t.set(n, value);
}

void check(const Problem& p, DType dtype, const std::string& forward, const std::string& backward) {
  const bool wide = dtype == DType::f64;
  const std::int64_t pages = p.page ? p.keys / p.page : 0;
  const Shape key = p.page ? Shape{p.batch * pages + 1, p.kv_heads, p.page, p.key_size}
                           : Shape{p.batch, p.kv_heads, p.keys, p.key_size};
  Shape value = key;
  value[3] = p.value_size;
  TestTensor q(dtype, {p.batch, p.heads, p.queries, p.key_size}, p.layout), k(dtype, key, p.layout),
      v(dtype, value, p.layout), out(dtype, {p.batch, p.heads, p.queries, p.value_size}),
      dout(dtype, out.shape(), p.layout), dq(dtype, q.shape()), dk(dtype, key), dv(dtype, value),
      lse(wide ? DType::f64 : DType::f32, {p.batch, p.heads, p.queries}), lengths(DType::i64, {p.batch}),
      table(DType::i32, {p.batch, std::max<std::int64_t>(pages, 1)}),
      mask(p.mask == Mask::allowed ? DType::boolean : dtype, {p.batch, p.heads, p.queries, p.keys}, p.layout);
  q.fill_random(1, -1, 1), k.fill_random(2, -1, 1), v.fill_random(3, -1, 1), dout.fill_random(4, -1, 1);
  mask.fill_random(5);
  // One query sees nothing.
  if (p.mask != Mask::none && p.layout != Layout::broadcast)
    fill_row(mask, p.queries - 2 >= 0 ? p.queries - 2 : 0, p.mask == Mask::allowed ? 0 : -kInfinity);
  // Sequences of all keys, of none, and of some; what lies behind them is not read.
  lengths.fill([&](std::int64_t b) {
    return static_cast<double>(b % 3 == 0 ? p.keys - p.keys / 3 : b % 3 == 1 ? 0 : p.keys);
  });
  table.fill([&](std::int64_t n) { return static_cast<double>((n * 5 + 2) % (p.batch * pages + 1)); });
  if (p.lengths && !p.page && p.layout != Layout::broadcast)
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t n = 0; n < p.kv_heads * p.keys; ++n)
        if (static_cast<double>(n % p.keys) >= lengths[b]) {
          fill_row(k, b * p.kv_heads * p.keys + n, std::numeric_limits<double>::quiet_NaN());
          fill_row(v, b * p.kv_heads * p.keys + n, std::numeric_limits<double>::quiet_NaN());
        }
  AttentionArgs args{.q = q.in(),
                     .k = k.in(),
                     .v = v.in(),
                     .mask = {},
                     .seqlens_k = {},
                     .block_table = {},
                     .out = out.out(),
                     .lse = lse.out(),
                     .scale = 0.4,
                     .causal = p.causal,
                     .variant = p.variant,
                     .dropout = {p.dropout, 5, 6}};
  if (p.mask != Mask::none) args.mask = mask.in();
  if (p.lengths) args.seqlens_k = lengths.in();
  if (p.page) args.block_table = table.in();
  const std::string what =
      cat(dtype, " batch ", p.batch, " heads ", p.heads, " of ", p.kv_heads, " queries ", p.queries, " keys ", p.keys,
          " sizes ", p.key_size, " ", p.value_size, " ", name_of(p.layout), p.causal ? " causal " : " ",
          static_cast<int>(p.variant), " mask ", static_cast<int>(p.mask), p.lengths ? " lengths" : "", " dropout ",
          p.dropout, " page ", p.page, " bytes ", kernels::cuda::scores_bytes);
  CAPTURE(what);
  trace::start();
  check_parity(compare_with_host(args, {&q, &k, &v, &mask, &lengths, &table, &out, &lse}, 16, 1), what);
  CHECK(way_of_trace() == forward);
  if (p.page) return;
  const AttentionGradArgs grad{.dout = dout.in(),
                               .q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = args.mask,
                               .seqlens_k = args.seqlens_k,
                               .out = {out.view()},
                               .lse = {lse.view()},
                               .dq = dq.out(),
                               .dk = dk.out(),
                               .dv = dv.out(),
                               .scale = args.scale,
                               .causal = args.causal,
                               .variant = args.variant,
                               .dropout = args.dropout};
  trace::start();
  check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &mask, &lengths, &out, &lse, &dq, &dk, &dv}, 32, 4), what);
  CHECK(way_of_trace() == backward);
  for (int without = 0; without < 3; ++without) {
    AttentionGradArgs partly = grad;
    (without == 0 ? partly.dq : without == 1 ? partly.dk : partly.dv) = {};
    check_parity(compare_with_host(partly, {&dout, &q, &k, &v, &mask, &lengths, &out, &lse, &dq, &dk, &dv}, 32, 4),
                 what + " partly");
  }
}

}  // namespace

TEST_CASE("the way of attention follows from sizes and arguments", "[attention][ways]") {
  const auto way = [](AttentionSizes s, bool drops = false, bool backward = false, bool has_products = true) {
    return attention_way(s, drops, backward, has_products);
  };
  const AttentionSizes large{2, 8, 2, 512, 512, 64, 64, 0}, decoding{2, 8, 2, 2, 4096, 64, 64, 0};
  CHECK(way(large) == AttentionWay::products);
  CHECK(way(large, true, true) == AttentionWay::products);
  CHECK(way(large, false, false, false) == AttentionWay::tiles);
  CHECK(way(decoding) == AttentionWay::few);
  CHECK(way(decoding, false, false, false) == AttentionWay::few);
  CHECK(way(decoding, true) == AttentionWay::tiles);
  CHECK(way(decoding, false, true) == AttentionWay::tiles);
  AttentionSizes s = decoding;
  s.queries = 3;  // 12 rows for each head of keys
  CHECK(way(s) == AttentionWay::products);
  s.page = 16;
  CHECK(way(s) == AttentionWay::tiles);
  s = decoding, s.page = 16;
  CHECK(way(s) == AttentionWay::few);
  s = large, s.keys = 63;
  CHECK(way(s) == AttentionWay::tiles);
  for (auto size : {&AttentionSizes::queries, &AttentionSizes::keys, &AttentionSizes::key_size,
                    &AttentionSizes::value_size, &AttentionSizes::batch}) {
    s = large, s.*size = 0;
    CHECK(way(s) == AttentionWay::tiles);
  }
}

TEST_CASE("attention by products, in chunks", "[attention][ways]") {
  constexpr auto lower = CausalVariant::lower_right;
  const std::vector<Problem> problems = {
      {2, 2, 2, 70, 65, 16, 24},
      {2, 2, 1, 70, 67, 5, 3, Layout::transposed, true},
      {3, 4, 2, 40, 66, 8, 16, Layout::slice, true, lower, Mask::allowed},
      {1, 4, 2, 35, 90, 8, 8, Layout::contiguous, true, lower, Mask::added},
      {2, 2, 2, 90, 70, 8, 7, Layout::broadcast, true, lower},
      {3, 4, 2, 33, 70, 16, 8, Layout::contiguous, false, lower, Mask::none, true},
      {3, 3, 3, 70, 64, 8, 8, Layout::slice, true, lower, Mask::added, true},
      {3, 2, 1, 64, 72, 8, 8, Layout::channels_last, true, CausalVariant::upper_left, Mask::none, true, 0.3},
      {1, 1, 1, 70, 130, 4, 4, Layout::contiguous, false, lower, Mask::none, false, 1.0},
      {1, 1, 1, 600, 70, 4, 4, Layout::contiguous, true},
  };
  const std::int64_t before = kernels::cuda::scores_bytes;
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 17, before})
    for (const Problem& p : problems)
      for (const DType dtype : kFloatingDTypes) {
        if (bytes == before && p.queries > 100) continue;
        kernels::cuda::scores_bytes = bytes;
        check(p, dtype, "attention by products;", "attention_grad by products;");
      }
  kernels::cuda::scores_bytes = before;
}

// Equal probabilities of which f16 has only multiples: unscaled, all would err by 0.25% to one side.
TEST_CASE("attention by products in f16 keeps small probabilities", "[attention][ways]") {
  constexpr std::int64_t kKeys = 83677, kQueries = 9;
  TestTensor q(DType::f16, {1, 1, kQueries, 1}), k(DType::f16, {1, 1, kKeys, 1}), v(DType::f16, {1, 1, kKeys, 1}),
      out(DType::f16, q.shape()), dout(DType::f16, q.shape()), dv(DType::f16, v.shape()),
      lse(DType::f32, {1, 1, kQueries});
  q.fill([](std::int64_t) { return 0.0; }), dout.fill([](std::int64_t) { return 1.0; });
  k.fill_random(2, -1, 1), v.fill_random(3, 0.5, 1);
  const AttentionArgs args{.q = q.in(),
                           .k = k.in(),
                           .v = v.in(),
                           .mask = {},
                           .out = out.out(),
                           .lse = lse.out(),
                           .scale = 1,
                           .causal = false,
                           .dropout = {}};
  check_parity(compare_with_host(args, {&q, &k, &v, &out, &lse}, 1.5, 0x1p-14), "forward");
  const AttentionGradArgs grad{.dout = dout.in(),
                               .q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = {},
                               .out = {out.view()},
                               .lse = {lse.view()},
                               .dq = {},
                               .dk = {},
                               .dv = dv.out(),
                               .scale = 1,
                               .causal = false,
                               .dropout = {}};
  check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &out, &lse, &dv}, 1.5, 0x1p-14), "backward");
}

// Gradients of scores that f16 has no numbers for, and whose sums it has.
TEST_CASE("attention by products in f16 keeps small gradients", "[attention][ways]") {
  constexpr std::int64_t kKeys = 4096, kQueries = 16;
  TestTensor q(DType::f16, {1, 1, kQueries, 8}), k(DType::f16, {1, 1, kKeys, 8}), v(DType::f16, {1, 1, kKeys, 8}),
      out(DType::f16, q.shape()), dout(DType::f16, q.shape()), dq(DType::f16, q.shape()), dk(DType::f16, k.shape()),
      dv(DType::f16, v.shape()), lse(DType::f32, {1, 1, kQueries});
  q.fill_random(1, -1, 1), k.fill_random(2, -1, 1), v.fill_random(3, -1, 1);
  dout.fill([](std::int64_t n) { return (n % 5 - 1) * 0x1p-9; });
  const AttentionArgs args{.q = q.in(),
                           .k = k.in(),
                           .v = v.in(),
                           .mask = {},
                           .out = out.out(),
                           .lse = lse.out(),
                           .scale = 0.1,
                           .causal = false,
                           .dropout = {}};
  check_parity(compare_with_host(args, {&q, &k, &v, &out, &lse}, 4, 0x1p-6), "forward");
  const AttentionGradArgs grad{.dout = dout.in(),
                               .q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = {},
                               .out = {out.view()},
                               .lse = {lse.view()},
                               .dq = dq.out(),
                               .dk = dk.out(),
                               .dv = dv.out(),
                               .scale = 0.1,
                               .causal = false,
                               .dropout = {}};
  // To the last digits that f16 has of numbers as small as these.
  check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &out, &lse, &dq, &dk, &dv}, 4, 0x1p-15), "backward");
}

TEST_CASE("attention of few queries, its keys in parts", "[attention][ways]") {
  constexpr auto lower = CausalVariant::lower_right;
  const std::vector<Problem> problems = {
      {1, 1, 1, 1, 1, 1, 1},
      {2, 2, 2, 1, 300, 16, 24},
      {3, 4, 1, 2, 700, 5, 3, Layout::transposed, true, lower, Mask::none, true},
      {3, 6, 2, 1, 1000, 24, 16, Layout::contiguous, true, lower, Mask::added, true},
      {2, 4, 2, 3, 520, 8, 8, Layout::slice, true, CausalVariant::upper_left, Mask::allowed},
      {1, 2, 2, 8, 300, 40, 40, Layout::broadcast, false, lower, Mask::added},
      {1, 1, 1, 5, 600, 256, 256},
      {2, 4, 1, 1, 65, 8, 8, Layout::contiguous, true, CausalVariant::upper_left},
      {1, 1, 1, 4, 3, 8, 8, Layout::contiguous, true, lower},
      {3, 4, 1, 2, 640, 16, 8, Layout::contiguous, true, lower, Mask::none, true, 0, 20},
      {3, 2, 2, 1, 390, 7, 9, Layout::slice, false, lower, Mask::added, true, 0, 13},
      {2, 8, 1, 1, 512, 8, 8, Layout::transposed, false, lower, Mask::none, false, 0, 16},
  };
  for (const Problem& p : problems)
    for (const DType dtype : kFloatingDTypes) check(p, dtype, "attention of few queries;", "attention_grad by tiles;");
}
