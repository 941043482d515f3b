// Kernels that are divided among threads give the same bytes for any number of them. Values are other tests' business:
// those of small operands, and of larger ones with the loops that small ones have.
#include "support/threads.h"

#include "support/catch.h"

using namespace lockstep;
using namespace support;

namespace {

// What makes one piece, several, and a remainder; long and short dimensions on every side.
const std::vector<Shape> kThreadShapes = {{90'001}, {3, 30'003}, {30'003, 3}, {11, 70, 129}, {2, 5, 2, 4999}};

constexpr std::pair<Layout, Layout> kLayouts[] = {{Layout::contiguous, Layout::contiguous},
                                                  {Layout::transposed, Layout::slice},
                                                  {Layout::broadcast, Layout::contiguous},
                                                  {Layout::slice, Layout::transposed}};

}  // namespace

TEST_CASE("elementwise kernels with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  for (const Shape& shape : kThreadShapes)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [layout, out_layout] : kLayouts) {
        if (!chosen(turn)) continue;
        INFO(cat(dtype, " ", shape, " ", name_of(layout), " to ", name_of(out_layout)));
        TestTensor x(dtype, shape, layout), y(dtype, shape), z(dtype, shape, out_layout);
        x.fill_random(1), y.fill_random(2);
        CHECK(differs_with_threads(BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = y.in(), .out = z.out()}, {&z}) ==
              "");
        const auto want = [&](std::int64_t i) { return x[i] * y[i]; };
        CHECK(mismatch(z, want) == "");
      }
}

TEST_CASE("copies, casts, where and fill with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  for (const Shape& shape : kThreadShapes)
    for (const auto& [layout, out_layout] : kLayouts) {
      if (!chosen(turn)) continue;
      INFO(cat(shape, " ", name_of(layout), " to ", name_of(out_layout)));
      TestTensor x(DType::f32, shape, layout), same(DType::f32, shape, out_layout), wide(DType::i64, shape, out_layout),
          flags(DType::boolean, shape, layout);
      x.fill_random(1), flags.fill_random(2);
      CHECK(differs_with_threads(CastArgs{.in = x.in(), .out = same.out()}, {&same}) == "");
      CHECK(mismatch(
                same, [&](std::int64_t i) { return x[i]; }, 0) == "");
      CHECK(differs_with_threads(CastArgs{.in = x.in(), .out = wide.out()}, {&wide}) == "");
      CHECK(mismatch(
                wide, [&](std::int64_t i) { return std::trunc(x[i]); }, 0) == "");
      TestTensor chosen(DType::f32, shape, out_layout);
      const WhereArgs args{.condition = flags.in(), .x = x.in(), .y = same.in(), .out = chosen.out()};
      CHECK(differs_with_threads(args, {&chosen}) == "");
      CHECK(differs_with_threads(FillArgs{.out = wide.out(), .value = 7, .integer = 7}, {&wide}) == "");
      CHECK(mismatch(
                wide, [](std::int64_t) { return 7.0; }, 0) == "");
    }
}

TEST_CASE("attention with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  struct Sizes {
    std::int64_t batch, heads, kv_heads, queries, keys;
  };
  // Few heads of many queries, many of few, and single queries.
  for (const Sizes s : {Sizes{1, 3, 3, 700, 301}, Sizes{9, 14, 7, 40, 65}, Sizes{5, 6, 2, 1, 1029}})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool causal : {false, true}) {
        INFO(cat(dtype, " ", s.queries, " queries, causal ", causal));
        const std::int64_t D = 40, E = 33;
        TestTensor q(dtype, {s.batch, s.heads, s.queries, D}, Layout::slice),
            k(dtype, {s.batch, s.kv_heads, s.keys, D}), v(dtype, {s.batch, s.kv_heads, s.keys, E}, Layout::slice),
            lengths(DType::i64, {s.batch}), out(dtype, {s.batch, s.heads, s.queries, E}),
            lse(DType::f32, {s.batch, s.heads, s.queries});
        q.fill_random(1), k.fill_random(2), v.fill_random(3);
        lengths.fill([&](std::int64_t b) { return static_cast<double>(s.keys - b * 3); });
        const AttentionDropout dropout{.p = 0.25, .key = 5, .stream = 6};
        const AttentionArgs args{.q = q.in(),
                                 .k = k.in(),
                                 .v = v.in(),
                                 .seqlens_k = lengths.in(),
                                 .out = out.out(),
                                 .lse = lse.out(),
                                 .scale = 0.2,
                                 .causal = causal,
                                 .variant = CausalVariant::lower_right,
                                 .dropout = dropout};
        CHECK(differs_with_threads(args, {&out, &lse}) == "");
        TestTensor dout(dtype, out.shape()), dq(dtype, q.shape()), dk(dtype, k.shape()), dv(dtype, v.shape());
        dout.fill_random(4);
        if (s.queries == 1) continue;  // too few to be divided
        const AttentionGradArgs grad{.dout = dout.in(),
                                     .q = q.in(),
                                     .k = k.in(),
                                     .v = v.in(),
                                     .seqlens_k = lengths.in(),
                                     .out = out.in(),
                                     .lse = lse.in(),
                                     .dq = dq.out(),
                                     .dk = dk.out(),
                                     .dv = dv.out(),
                                     .scale = 0.2,
                                     .causal = causal,
                                     .variant = CausalVariant::lower_right,
                                     .dropout = dropout};
        CHECK(differs_with_threads(grad, {&dq, &dk, &dv}) == "");
      }
}
