// Attention against the formula, in double.
#include <array>

#include "lockstep/kernels/philox.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;
using Catch::Matchers::Contains;

namespace {

struct AttentionProblem {
  std::int64_t batch, heads, queries, keys, key_size, value_size;
  std::int64_t group = 1;  // heads of queries for one head of keys and values
};
enum class Mask { none, allowed, added };
enum class Causal { no, upper_left, lower_right };
struct Options {
  Mask mask = Mask::none;
  Causal causal = Causal::no;
  Layout layout = Layout::contiguous;
  double dropout = 0;
  bool lengths = false;
  std::int64_t page = 0;  // rows of a page; forward alone
  DType integers = DType::i64;
};

struct Naive {
  std::vector<double> out, lse, dq, dk, dv;
};

// All operands of a call. Keys that no query may see are NaN: they must not be read.
struct Operands {
  AttentionProblem p;
  Options o;
  std::int64_t pages = 0;  // of a sequence
  TestTensor q, k, v, dout, mask, lengths, table;

  Operands(DType dtype, const AttentionProblem& problem, const Options& options)
      : p(problem),
        o(options),
        pages(o.page > 0 ? p.keys / o.page : 0),
        q(dtype, {p.batch, p.heads, p.queries, p.key_size}, o.layout),
        k(dtype, key_shape(p.key_size), o.layout),
        v(dtype, key_shape(p.value_size), o.layout),
        dout(dtype, {p.batch, p.heads, p.queries, p.value_size}, o.layout),
        mask(o.mask == Mask::allowed ? DType::boolean : dtype, {p.batch, p.heads, p.queries, p.keys}, o.layout),
        lengths(o.integers, {p.batch}, o.layout),
        table(o.integers, {p.batch, pages}, o.layout) {
    q.fill_random(1), k.fill_random(2), v.fill_random(3), dout.fill_random(4), mask.fill_random(5);
    lengths.fill([&](std::int64_t b) { return static_cast<double>((b * 7 + p.keys * 3 + 1) % (p.keys + 1)); });
    // Every page once, in another order; one page is nobody's.
    table.fill([&](std::int64_t n) { return static_cast<double>(p.batch * pages - n); });
    if (o.layout == Layout::broadcast) return;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t j = length(b); j < p.keys; ++j) {
        if (o.page > 0 && j % o.page == 0) table.set(b * pages + j / o.page, -1);
        if (o.page == 0) hide(b, j);
      }
    if (o.page > 0) hide(0, 0), hide(0, o.page - 1);  // the page of nobody
  }

  std::int64_t kv_heads() const { return p.heads / p.group; }
  std::int64_t length(std::int64_t b) const { return o.lengths ? static_cast<std::int64_t>(lengths.at({b})) : p.keys; }
  // The first two and the third index of key j.
  std::array<std::int64_t, 3> place(std::int64_t b, std::int64_t g, std::int64_t j) const {
    if (o.page == 0) return {b, g, j};
    return {static_cast<std::int64_t>(table.at({b, j / o.page})), g, j % o.page};
  }
  bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (j >= length(b)) return false;
    if (o.causal == Causal::upper_left) return j <= i;
    return o.causal == Causal::no || j <= i + length(b) - p.queries;
  }
  void fill_common(auto& a) const {
    a.q = q.in(), a.k = k.in(), a.v = v.in();
    if (o.mask != Mask::none) a.mask = mask.in();
    if (o.lengths) a.seqlens_k = lengths.in();
    a.scale = 0.4;
    a.causal = o.causal != Causal::no;
    if (o.causal == Causal::lower_right) a.variant = CausalVariant::lower_right;
    a.dropout = {o.dropout, 7, 11};
  }
  AttentionArgs args(TestTensor& out, TestTensor& lse) const {
    AttentionArgs a{};
    fill_common(a);
    if (o.page > 0) a.block_table = table.in();
    a.out = out.out(), a.lse = lse.out();
    return a;
  }

 private:
  Shape key_shape(std::int64_t size) const {
    if (o.page > 0) return {p.batch * pages + 1, kv_heads(), o.page, size};
    return {p.batch, kv_heads(), p.keys, size};
  }
  void hide(std::int64_t first, std::int64_t row) {
    for (TestTensor* x : {&k, &v}) {
      const Shape& s = x->shape();
      for (std::int64_t g = 0; g < s[1]; ++g)
        for (std::int64_t d = 0; d < s[3]; ++d) x->set(((first * s[1] + g) * s[2] + row) * s[3] + d, std::nan(""));
    }
  }
};

// Straight from the definition, one head after the other.
Naive naive(const Operands& x, const AttentionArgs& a) {
  const auto [B, H, T, S, D, E, group] = x.p;
  Naive r;
  const auto sized = [](std::int64_t count) { return std::vector<double>(static_cast<std::size_t>(count)); };
  r.out = sized(B * H * T * E), r.lse = sized(B * H * T), r.dq = sized(x.q.count());
  r.dk = sized(x.k.count()), r.dv = sized(x.v.count());
  const std::uint64_t threshold = philox::threshold(1 - a.dropout.p);
  for (std::int64_t head = 0; head < B * H; ++head)
    for (std::int64_t i = 0; i < T; ++i) {
      const std::int64_t b = head / H, h = head % H, g = h / group;
      std::vector<double> p = sized(S), kept(static_cast<std::size_t>(S), 1.0), dp = sized(S);
      double sum = 0, top = -std::numeric_limits<double>::infinity();
      for (std::int64_t j = 0; j < S; ++j) {
        double& s = p[static_cast<std::size_t>(j)];
        s = -std::numeric_limits<double>::infinity();
        if (!x.sees(b, i, j) || (x.o.mask == Mask::allowed && x.mask.at({b, h, i, j}) == 0)) continue;
        const auto [first, second, row] = x.place(b, g, j);
        s = 0;
        for (std::int64_t d = 0; d < D; ++d) s += x.q.at({b, h, i, d}) * x.k.at({first, second, row, d});
        s *= a.scale;
        if (x.o.mask == Mask::added) s += x.mask.at({b, h, i, j});
        top = std::max(top, s);
        if (a.dropout.p > 0) {
          const auto at = static_cast<std::uint64_t>((head * T + i) * S + j);
          const bool keep = philox::block(at / 4, a.dropout.stream, a.dropout.key).words[at % 4] < threshold;
          kept[static_cast<std::size_t>(j)] = keep ? 1 / (1 - a.dropout.p) : 0;
        }
      }
      for (double& s : p) sum += s = std::isinf(s) ? 0 : std::exp(s - top);
      r.lse[static_cast<std::size_t>(head * T + i)] =
          sum > 0 ? top + std::log(sum) : std::numeric_limits<double>::infinity();
      double delta = 0;
      for (std::int64_t j = 0; j < S; ++j) {
        const auto n = static_cast<std::size_t>(j);
        if (p[n] == 0) continue;
        p[n] /= sum;
        const auto [first, second, row] = x.place(b, g, j);
        for (std::int64_t e = 0; e < E; ++e) {
          const double value = x.v.at({first, second, row, e});
          r.out[static_cast<std::size_t>((head * T + i) * E + e)] += p[n] * kept[n] * value;
          if (x.o.page > 0) continue;
          const double dout = x.dout.at({b, h, i, e});
          r.dv[static_cast<std::size_t>(((b * (H / group) + g) * S + j) * E + e)] += p[n] * kept[n] * dout;
          dp[n] += dout * value * kept[n];
        }
        delta += dp[n] * p[n];
      }
      for (std::int64_t j = 0; j < S && x.o.page == 0; ++j)
        for (std::int64_t d = 0; d < D; ++d) {
          const auto n = static_cast<std::size_t>(j);
          if (p[n] == 0) continue;
          const double ds = p[n] * (dp[n] - delta) * a.scale;
          r.dq[static_cast<std::size_t>((head * T + i) * D + d)] += ds * x.k.at({b, g, j, d});
          r.dk[static_cast<std::size_t>(((b * (H / group) + g) * S + j) * D + d)] += ds * x.q.at({b, h, i, d});
        }
    }
  return r;
}

void check_attention(DType dtype, const AttentionProblem& p, const Options& o) {
  const Operands x(dtype, p, o);
  TestTensor out(dtype, x.dout.shape()),
      lse(dtype == DType::f64 ? DType::f64 : DType::f32, {p.batch, p.heads, p.queries});
  TestTensor dq(dtype, x.q.shape()), dk(dtype, x.k.shape()), dv(dtype, x.v.shape());
  const AttentionArgs args = x.args(out, lse);
  const Naive want = naive(x, args);
  INFO(cat(dtype, " ", x.q.shape(), " keys ", x.k.shape(), " values ", x.v.shape(), " mask ", static_cast<int>(o.mask),
           " causal ", static_cast<int>(o.causal), " ", name_of(o.layout), " dropout ", o.dropout,
           o.lengths ? " lengths" : "", " page ", o.page));
  const auto of = [](const std::vector<double>& values) {
    return [&values](std::int64_t i) { return values[static_cast<std::size_t>(i)]; };
  };
  support::run(args);
  CHECK(mismatch(out, of(want.out), 8, static_cast<double>(std::max<std::int64_t>(16, p.key_size))) == "");
  CHECK(mismatch(lse, of(want.lse), 16, 16) == "");
  if (o.page > 0) return;
  AttentionGradArgs grad{};
  x.fill_common(grad);
  grad.dout = x.dout.in(), grad.out = {out.view()}, grad.lse = {lse.view()};
  grad.dq = dq.out(), grad.dk = dk.out(), grad.dv = dv.out();
  support::run(grad);
  // Sums over all queries, of numbers that were rounded to the dtype.
  const double scale = 64 + static_cast<double>(p.queries * p.group);
  CHECK(mismatch(dq, of(want.dq), 8, scale) == "");
  CHECK(mismatch(dk, of(want.dk), 8, scale) == "");
  CHECK(mismatch(dv, of(want.dv), 8, scale) == "");
}

}  // namespace

TEST_CASE("attention is the formula, for all dtypes, masks and layouts") {
  for (const DType dtype : kFloatingDTypes)
    for (const auto& [mask, causal] : {std::pair{Mask::none, Causal::no},
                                       {Mask::allowed, Causal::no},
                                       {Mask::added, Causal::no},
                                       {Mask::none, Causal::upper_left}})
      for (const double dropout : {0.0, 0.3}) {
        const auto with = [&](Layout layout) {
          return Options{.mask = mask, .causal = causal, .layout = layout, .dropout = dropout};
        };
        check_attention(dtype, {1, 1, 1, 1, 1, 1}, with(Layout::contiguous));
        check_attention(dtype, {2, 3, 5, 7, 4, 6}, with(Layout::contiguous));
        check_attention(dtype, {2, 2, 33, 40, 9, 8}, with(Layout::transposed));
        check_attention(dtype, {2, 2, 40, 17, 8, 8}, with(Layout::slice));
        check_attention(dtype, {2, 2, 6, 5, 3, 4}, with(Layout::broadcast));
        check_attention(dtype, {2, 2, 1, 9, 16, 32}, with(Layout::contiguous));
      }
}

TEST_CASE("attention goes through several tiles of queries and keys") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const auto& [mask, causal] : {std::pair{Mask::none, Causal::no},
                                       {Mask::added, Causal::no},
                                       {Mask::none, Causal::upper_left},
                                       {Mask::none, Causal::lower_right}}) {
      check_attention(dtype, {1, 2, 130, 300, 16, 12}, {.mask = mask, .causal = causal});
      check_attention(dtype, {1, 1, 300, 270, 8, 8}, {.mask = mask, .causal = causal, .dropout = 0.25});
      check_attention(dtype, {1, 4, 1, 300, 16, 144, 4}, {.mask = mask, .causal = causal});
      // Rows of whole tiles and a part of one, read in place.
      check_attention(dtype, {1, 2, 33, 65, 48, 80}, {.mask = mask, .causal = causal});
      check_attention(dtype, {1, 2, 65, 40, 48, 16}, {.mask = mask, .causal = causal});
    }
}

TEST_CASE("attention is the formula for shapes and options drawn by a seed") {
  std::uint64_t state = 20;
  const auto draw = [&](std::int64_t most) {  // 0 … most
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(most + 1));
  };
  for (int round = 0; round < 60; ++round) {
    const std::int64_t group = 1 + draw(3), page = draw(1) ? 1 + draw(20) : 0;
    AttentionProblem p{.batch = 1 + draw(2),
                       .heads = group * (1 + draw(1)),
                       .queries = draw(2) ? 1 + draw(40) : 1 + draw(2),
                       .keys = 1 + draw(150),
                       .key_size = 1 + draw(20),
                       .value_size = 1 + draw(20),
                       .group = group};
    if (page > 0) p.keys = page * (1 + p.keys / page);
    if (draw(3) == 0) p.key_size = p.value_size = 16;  // whole tiles, which are read in place
    const Options o{.mask = static_cast<Mask>(draw(2)),
                    .causal = static_cast<Causal>(draw(2)),
                    .layout = static_cast<Layout>(draw(3) == 3 ? 3 : draw(1)),
                    .dropout = draw(3) ? 0.0 : 0.3,
                    .lengths = draw(2) > 0,
                    .page = page,
                    .integers = draw(1) ? DType::i32 : DType::i64};
    for (const DType dtype : kFloatingDTypes) check_attention(dtype, p, o);
  }
}

TEST_CASE("attention of nothing") {
  for (const AttentionProblem& p :
       {AttentionProblem{0, 2, 3, 4, 5, 6}, AttentionProblem{2, 2, 0, 4, 5, 6}, AttentionProblem{2, 1, 3, 0, 5, 6},
        AttentionProblem{2, 0, 3, 4, 5, 6}, AttentionProblem{2, 1, 1, 0, 5, 6}, AttentionProblem{2, 1, 20, 3, 0, 6},
        AttentionProblem{2, 1, 20, 3, 5, 0}, AttentionProblem{2, 1, 2, 3, 0, 0}})
    for (const DType dtype : {DType::f32, DType::bf16}) check_attention(dtype, p, {});
  // No pages at all, and sequences that have none of theirs: nothing is read of the table.
  for (const std::int64_t queries : {1, 20})
    for (const std::int64_t keys : {0, 4})
      check_attention(DType::f32, {3, 1, queries, keys, 8, 8}, {.lengths = true, .page = 4});
}

TEST_CASE("attention refuses indices of pages, and lengths, that cannot be, and writes nothing") {
  for (const DType integers : {DType::i32, DType::i64})
    for (const std::int64_t queries : {1, 20}) {
      const AttentionProblem p{2, 2, queries, 12, 3, 5};
      Operands x(DType::f32, p, {.lengths = true, .page = 4, .integers = integers});
      TestTensor out(DType::f32, x.dout.shape()), lse(DType::f32, {2, 2, queries});
      const std::vector<std::byte> before = out.bytes();
      const auto run_with = [&](TestTensor& t, std::int64_t position, double value) {
        t.set(position, value);
        support::run(x.args(out, lse));
      };
      x.lengths.set(0, 12), x.lengths.set(1, 6);
      x.table.set(3, 0), x.table.set(4, 1), x.table.set(5, 99);  // the last one is behind the sequence
      CHECK_THROWS_WITH(run_with(x.lengths, 0, 13), Contains("[0, 12]") && Contains("got 13 for sequence 0"));
      CHECK_THROWS_WITH(run_with(x.lengths, 0, -1), Contains("[0, 12]") && Contains("got -1"));
      x.lengths.set(0, 12);
      CHECK_THROWS_WITH(run_with(x.table, 4, 7), Contains("pages in [0, 7), got 7 at position 1 of sequence 1"));
      CHECK_THROWS_WITH(run_with(x.table, 4, -1), Contains("got -1"));
      CHECK((out.bytes() == before));
      CHECK_NOTHROW(run_with(x.table, 4, 1));
    }
}

TEST_CASE("a query that sees no key gets zeros and gives none") {
  for (const DType dtype : kFloatingDTypes) {
    const Shape shape{1, 1, 3, 2};
    TestTensor q(dtype, shape), k(dtype, shape), v(dtype, shape), dout(dtype, shape),
        mask(DType::boolean, {1, 1, 3, 3});
    TestTensor out(dtype, shape), lse(dtype == DType::f64 ? DType::f64 : DType::f32, {1, 1, 3});
    TestTensor dq(dtype, shape), dk(dtype, shape), dv(dtype, shape);
    q.fill_random(1), k.fill_random(2), v.fill_random(3), dout.fill_random(4);
    mask.fill([](std::int64_t i) { return i == 1 ? 1.0 : 0.0; });  // query 0 sees key 1, the others nothing
    support::run(AttentionArgs{.q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = mask.in(),
                               .out = out.out(),
                               .lse = lse.out(),
                               .scale = 1,
                               .causal = false,
                               .dropout = {}});
    for (const int e : {0, 1}) {
      CHECK(out[e] == v[2 + e]);
      CHECK(out[2 + e] == 0);
      CHECK(out[4 + e] == 0);
    }
    support::run(AttentionGradArgs{.dout = dout.in(),
                                   .q = q.in(),
                                   .k = k.in(),
                                   .v = v.in(),
                                   .mask = mask.in(),
                                   .out = {out.view()},
                                   .lse = {lse.view()},
                                   .dq = dq.out(),
                                   .dk = dk.out(),
                                   .dv = dv.out(),
                                   .scale = 1,
                                   .causal = false,
                                   .dropout = {}});
    for (std::int64_t i = 0; i < 6; ++i) {
      CHECK(std::fabs(dq[i]) <= epsilon(dtype));  // one key: its probability is 1 whatever the query
      CHECK(std::fabs(dk[i]) <= epsilon(dtype));
      CHECK(dv[i] == (i / 2 == 1 ? dout[i - 2] : 0));
    }
  }
}
