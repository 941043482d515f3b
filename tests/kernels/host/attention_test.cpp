// Attention against the formula, in double.
#include "lockstep/kernels/philox.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct Problem {
  std::int64_t batch, heads, queries, keys, key_size, value_size;
};
enum class Mask { none, allowed, added, causal };

using Rows = std::vector<std::vector<double>>;

struct Naive {
  std::vector<double> out, lse, dq, dk, dv;
};

// Straight from the definition, one head after the other.
Naive naive(const AttentionArgs& a, const TestTensor& q, const TestTensor& k, const TestTensor& v,
            const TestTensor& mask, const TestTensor& dout) {
  const Shape &qs = q.shape(), &vs = v.shape();
  const std::int64_t T = qs[2], D = qs[3], S = vs[2], E = vs[3];
  Naive r;
  r.out.resize(static_cast<std::size_t>(qs[0] * qs[1] * T * E));
  r.lse.resize(static_cast<std::size_t>(qs[0] * qs[1] * T));
  r.dq.resize(static_cast<std::size_t>(q.count()));
  r.dk.resize(static_cast<std::size_t>(k.count()));
  r.dv.resize(static_cast<std::size_t>(v.count()));
  const std::uint64_t threshold = philox::threshold(1 - a.dropout.p);
  for (std::int64_t head = 0; head < qs[0] * qs[1]; ++head)
    for (std::int64_t i = 0; i < T; ++i) {
      const std::int64_t b = head / qs[1], h = head % qs[1];
      std::vector<double> p(static_cast<std::size_t>(S)), kept(static_cast<std::size_t>(S), 1.0);
      double sum = 0, top = -std::numeric_limits<double>::infinity();
      for (std::int64_t j = 0; j < S; ++j) {
        double& s = p[static_cast<std::size_t>(j)];
        for (std::int64_t d = 0; d < D; ++d) s += q.at({b, h, i, d}) * k.at({b, h, j, d});
        s *= a.scale;
        if (a.mask.view.present && a.mask.view.dtype != DType::boolean) s += mask.at({b, h, i, j});
        if (a.mask.view.present && a.mask.view.dtype == DType::boolean && mask.at({b, h, i, j}) == 0)
          s = -std::numeric_limits<double>::infinity();
        if (a.causal && j > i) s = -std::numeric_limits<double>::infinity();
        top = std::max(top, s);
        if (a.dropout.p > 0) {
          const auto at = static_cast<std::uint64_t>((head * T + i) * S + j);
          const bool keep = philox::block(at / 4, a.dropout.stream, a.dropout.key).words[at % 4] < threshold;
          kept[static_cast<std::size_t>(j)] = keep ? 1 / (1 - a.dropout.p) : 0;
        }
      }
      for (double& s : p) sum += s = std::isinf(top) ? 0 : std::exp(s - top);
      r.lse[static_cast<std::size_t>(head * T + i)] =
          sum > 0 ? top + std::log(sum) : std::numeric_limits<double>::infinity();
      if (sum == 0) continue;
      double delta = 0;
      std::vector<double> dp(static_cast<std::size_t>(S));
      for (std::int64_t j = 0; j < S; ++j) {
        const auto n = static_cast<std::size_t>(j);
        p[n] /= sum;
        for (std::int64_t e = 0; e < E; ++e) {
          r.out[static_cast<std::size_t>((head * T + i) * E + e)] += p[n] * kept[n] * v.at({b, h, j, e});
          r.dv[static_cast<std::size_t>((head * S + j) * E + e)] += p[n] * kept[n] * dout.at({b, h, i, e});
          dp[n] += dout.at({b, h, i, e}) * v.at({b, h, j, e}) * kept[n];
        }
        delta += dp[n] * p[n];
      }
      for (std::int64_t j = 0; j < S; ++j)
        for (std::int64_t d = 0; d < D; ++d) {
          const auto n = static_cast<std::size_t>(j);
          const double ds = p[n] * (dp[n] - delta) * a.scale;
          r.dq[static_cast<std::size_t>((head * T + i) * D + d)] += ds * k.at({b, h, j, d});
          r.dk[static_cast<std::size_t>((head * S + j) * D + d)] += ds * q.at({b, h, i, d});
        }
    }
  return r;
}

void check_attention(DType dtype, const Problem& p, Mask kind, Layout layout, double dropout) {
  TestTensor q(dtype, {p.batch, p.heads, p.queries, p.key_size}, layout),
      k(dtype, {p.batch, p.heads, p.keys, p.key_size}, layout),
      v(dtype, {p.batch, p.heads, p.keys, p.value_size}, layout),
      dout(dtype, {p.batch, p.heads, p.queries, p.value_size}, layout);
  TestTensor mask(kind == Mask::allowed ? DType::boolean : dtype, {p.batch, p.heads, p.queries, p.keys}, layout);
  TestTensor out(dtype, dout.shape()),
      lse(dtype == DType::f64 ? DType::f64 : DType::f32, {p.batch, p.heads, p.queries});
  TestTensor dq(dtype, q.shape()), dk(dtype, k.shape()), dv(dtype, v.shape());
  q.fill_random(1), k.fill_random(2), v.fill_random(3), dout.fill_random(4), mask.fill_random(5);
  AttentionArgs args{.q = q.in(),
                     .k = k.in(),
                     .v = v.in(),
                     .mask = {},
                     .out = out.out(),
                     .lse = lse.out(),
                     .scale = 0.4,
                     .causal = kind == Mask::causal,
                     .dropout = {dropout, 7, 11}};
  if (kind == Mask::allowed || kind == Mask::added) args.mask = mask.in();
  const Naive want = naive(args, q, k, v, mask, dout);
  INFO(cat(dtype, " ", out.shape(), " keys ", p.keys, " mask ", static_cast<int>(kind), " ", name_of(layout),
           " dropout ", dropout));
  const auto of = [](const std::vector<double>& values) {
    return [&values](std::int64_t i) { return values[static_cast<std::size_t>(i)]; };
  };
  support::run(args);
  CHECK(mismatch(out, of(want.out), 8, 8) == "");
  CHECK(mismatch(lse, of(want.lse), 16, 16) == "");
  const AttentionGradArgs grad{.dout = dout.in(),
                               .q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = args.mask,
                               .out = {out.view()},
                               .lse = {lse.view()},
                               .dq = dq.out(),
                               .dk = dk.out(),
                               .dv = dv.out(),
                               .scale = args.scale,
                               .causal = args.causal,
                               .dropout = args.dropout};
  support::run(grad);
  // Sums over all queries, of numbers that were rounded to the dtype.
  const double scale = 64 + static_cast<double>(p.queries);
  CHECK(mismatch(dq, of(want.dq), 8, scale) == "");
  CHECK(mismatch(dk, of(want.dk), 8, scale) == "");
  CHECK(mismatch(dv, of(want.dv), 8, scale) == "");
}

}  // namespace

TEST_CASE("attention is the formula, for all dtypes, masks and layouts") {
  for (const DType dtype : kFloatingDTypes)
    for (const Mask mask : {Mask::none, Mask::allowed, Mask::added, Mask::causal})
      for (const double dropout : {0.0, 0.3}) {
        check_attention(dtype, {1, 1, 1, 1, 1, 1}, mask, Layout::contiguous, dropout);
        check_attention(dtype, {2, 3, 5, 7, 4, 6}, mask, Layout::contiguous, dropout);
        check_attention(dtype, {2, 2, 33, 40, 9, 8}, mask, Layout::transposed, dropout);
        check_attention(dtype, {2, 2, 40, 17, 8, 8}, mask, Layout::slice, dropout);
        check_attention(dtype, {2, 2, 6, 5, 3, 4}, mask, Layout::broadcast, dropout);
      }
}

TEST_CASE("attention goes through several tiles of queries and keys") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const Mask mask : {Mask::none, Mask::added, Mask::causal}) {
      check_attention(dtype, {1, 2, 130, 300, 16, 12}, mask, Layout::contiguous, 0);
      check_attention(dtype, {1, 1, 300, 270, 8, 8}, mask, Layout::contiguous, 0.25);
    }
}

TEST_CASE("attention of nothing") {
  for (const Problem& p : {Problem{0, 2, 3, 4, 5, 6}, Problem{2, 2, 0, 4, 5, 6}, Problem{2, 1, 3, 0, 5, 6}})
    for (const DType dtype : {DType::f32, DType::bf16}) check_attention(dtype, p, Mask::none, Layout::contiguous, 0);
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
