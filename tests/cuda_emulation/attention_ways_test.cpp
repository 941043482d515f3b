// The ways to compute attention on CUDA, each against the host, with shapes that take it.
#include "cuda_emulation/attention_cases.h"
#include "lockstep/kernels/cuda/attention_way.h"

using namespace attention_cases;
using kernels::AttentionSizes;
using kernels::cuda::attention_way;
using kernels::cuda::AttentionWay;

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
