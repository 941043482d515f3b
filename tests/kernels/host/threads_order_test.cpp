// Reductions, order and optimizers divided among threads: the same bytes for any number of them, and right values in
// every piece.
#include <algorithm>
#include <numeric>

#include "lockstep/kernels/philox.h"
#include "support/catch.h"
#include "support/threads.h"

using namespace lockstep;
using namespace support;

namespace {

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

TEST_CASE("reductions with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  struct Case {
    Shape in, out;
  };
  constexpr std::pair<DType, Layout> kOperands[] = {{DType::f32, Layout::contiguous},
                                                    {DType::f32, Layout::transposed},
                                                    {DType::bf16, Layout::slice},
                                                    {DType::i64, Layout::contiguous}};
  for (const auto& [shape, kept] : {Case{{1501, 301}, {1501, 1}},            // rows
                                    Case{{3, 170'001}, {3, 1}},              // long ones
                                    Case{{20'003, 13}, {20'003, 1}},         // short ones
                                    Case{{151, 2503}, {1, 2503}},            // columns
                                    Case{{70'001, 5}, {1, 5}},               // tall ones
                                    Case{{3003, 1200}, {1, 1200}},           // more of them
                                    Case{{3001, 3, 50}, {1, 3, 50}},         // of two dimensions
                                    Case{{40, 50, 207}, {40, 1, 207}},       // in the middle
                                    Case{{2, 303, 2, 601}, {2, 1, 2, 1}},    // rows that are joined
                                    Case{{2, 3, 2, 70'001}, {2, 1, 2, 1}},   // long ones
                                    Case{{60, 11, 20, 31}, {60, 1, 20, 1}},  // many results
                                    Case{{7, 301, 403}, {1, 301, 1}},        // the same, by turns
                                    Case{{300'007}, {1}}})                   // one
    for (const auto& [dtype, layout] : kOperands) {
      if (!chosen(turn)) continue;
      TestTensor x(dtype, shape, layout), out(dtype, kept, Layout::slice);
      x.fill_random(1, -8, 9);
      std::vector<double> sums(place(out.count())), tops(place(out.count()), -100.0);
      // Whole numbers: sums are exact.
      x.fill([&](std::int64_t i) { return std::floor(x[i]); });
      for (std::int64_t i = 0; i < x.count(); ++i) {
        std::int64_t rest = i, to = 0, step = 1;
        for (int d = shape.rank() - 1; d >= 0; --d) {
          if (kept[d] != 1) to += rest % shape[d] * step, step *= shape[d];
          rest /= shape[d];
        }
        sums[place(to)] += x[i];
        tops[place(to)] = std::max(tops[place(to)], x[i]);
      }
      INFO(cat(dtype, shape, kept, name_of(layout)));
      CHECK(differs_with_threads(ReduceArgs{ReduceOp::sum, x.in(), out.out()}, {&out}) == "");
      CHECK(mismatch(
                out, [&](std::int64_t i) { return sums[place(i)]; }, 0) == "");
      CHECK(differs_with_threads(ReduceArgs{ReduceOp::max, x.in(), out.out()}, {&out}) == "");
      CHECK(mismatch(
                out, [&](std::int64_t i) { return tops[place(i)]; }, 0) == "");
      if (!is_floating(dtype)) continue;
      // The order of additions matters here.
      x.fill_random(2, -1e3, 1e3);
      CHECK(differs_with_threads(ReduceArgs{ReduceOp::norm, x.in(), out.out()}, {&out}) == "");
    }
}

TEST_CASE("arg_reduce with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64})
    for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::slice})
      for (const int dim : {0, 1, 2}) {
        const Shape shape{45, 101, 67};
        Shape kept = shape;
        kept[dim] = 1;
        TestTensor x(dtype, shape, layout), out(DType::i64, kept, Layout::slice);
        x.fill_random(1, -50, 50);
        INFO(cat(dtype, dim, name_of(layout)));
        CHECK(differs_with_threads(ArgReduceArgs{ArgReduceOp::max, dim, x.in(), out.out()}, {&out}) == "");
        const auto want = [&](std::int64_t i) {
          Dims at = Dims::filled(3, 0);
          for (int d = 2; d >= 0; --d) at[d] = i % kept[d], i /= kept[d];
          std::int64_t best = 0;
          double top = x.at(at);
          for (std::int64_t k = 1; k < shape[dim]; ++k) {
            at[dim] = k;
            if (x.at(at) > top) top = x.at(at), best = k;
          }
          return static_cast<double>(best);
        };
        CHECK(mismatch(out, want, 0) == "");
      }
}

TEST_CASE("cumsum and argsort with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  for (const Shape& shape : {Shape{1501, 131, 1}, Shape{3, 34, 4503}, Shape{40, 13, 301}})
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i64})
      for (const bool reverse : {false, true}) {
        if (!chosen(turn)) continue;
        INFO(cat(dtype, shape, reverse));
        const std::int64_t size = shape[1], inner = shape[2];
        TestTensor x(dtype, shape), y(dtype, shape);
        x.fill_random(1, 0, 8);
        x.fill([&](std::int64_t i) { return std::floor(x[i]); });
        CHECK(differs_with_threads(CumsumArgs{x.in(), y.out(), reverse}, {&y}) == "");
        std::vector<double> sums = x.values();
        for (std::int64_t k = 0; k < x.count(); ++k) {
          const std::int64_t i = reverse ? x.count() - 1 - k : k, at = i / inner % size;
          if (at != (reverse ? size - 1 : 0)) sums[place(i)] += sums[place(reverse ? i + inner : i - inner)];
        }
        CHECK(mismatch(
                  y, [&](std::int64_t i) { return sums[place(i)]; }, 0) == "");
      }
  for (const auto& [shape, wanted] : {std::pair{Shape{31, 1003, 1}, 1003}, std::pair{Shape{5, 101, 43}, 101},
                                      std::pair{Shape{5, 301, 43}, 5}, std::pair{Shape{1, 40'003, 1}, 40'003}})
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32}) {
      if (!chosen(turn)) continue;
      INFO(cat(dtype, shape));
      const std::int64_t size = shape[1], inner = shape[2];
      TestTensor x(dtype, shape), indices(DType::i64, {shape[0], wanted, inner});
      x.fill_random(1, -90, 90);
      CHECK(differs_with_threads(ArgsortArgs{x.in(), indices.out(), false}, {&indices}) == "");
      bool right = true;
      for (std::int64_t line = 0; line < shape[0] * inner; ++line) {
        const std::int64_t o = line / inner, j = line % inner;
        std::vector<std::int64_t> order(place(size));
        std::iota(order.begin(), order.end(), std::int64_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
          return x[(o * size + a) * inner + j] < x[(o * size + b) * inner + j];
        });
        for (std::int64_t k = 0; k < wanted; ++k)
          right &= indices.integer((o * wanted + k) * inner + j) == order[place(k)];
      }
      CHECK(right);
    }
}

TEST_CASE("the first of several wrong indices is named, whatever the threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  const std::int64_t count = 300'001;
  TestTensor x(DType::f32, {10}), index(DType::i64, {count}), y(DType::f32, {count});
  index.fill([](std::int64_t) { return 3.0; });
  for (const std::int64_t i : {70'003, 200'003, 300'000}) index.set_integer(i, i);
  for (const int threads : {1, 2, 7}) {
    const Threads set(threads);
    CHECK_THROWS_WITH(run(GatherArgs{x.in(), index.in(), y.out(), 0}),
                      Catch::Matchers::Contains("[gather] expected indices in [0, 10), got 70003 at position 70003"));
    CHECK_THROWS_WITH(
        run(ScatterAddArgs{y.in(), index.in(), x.inout(), 0}),
        Catch::Matchers::Contains("[scatter_add] expected indices in [0, 10), got 70003 at position 70003"));
    const std::vector<std::byte> before = y.bytes(), x_before = x.bytes();
    CHECK_THROWS_WITH(run(IndexSelectArgs{x.in(), index.in(), y.out(), 0}),
                      Catch::Matchers::Contains("got 70003 at position 70003"));
    CHECK_THROWS_WITH(run(IndexAddArgs{y.in(), index.in(), x.inout(), 0}),
                      Catch::Matchers::Contains("got 70003 at position 70003"));
    CHECK(y.bytes() == before);
    CHECK(x.bytes() == x_before);
    // The first in row-major order, which is not in the first piece: column 3 has a wrong one in the last row.
    View rows = index.in().view;
    rows.shape = {3, 100'000}, rows.strides = {100'000, 1};
    TestTensor wide_x(DType::f32, {10, 100'000}), wide_y(DType::f32, {3, 100'000});
    CHECK_THROWS_WITH(run(GatherArgs{wide_x.in(), In{rows}, wide_y.out(), 0}),
                      Catch::Matchers::Contains("got 70003 at position 70003"));
  }
}

TEST_CASE("optimizers and ordered sums with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  constexpr std::int64_t kPeriod = 97;
  // Numbers repeat: so must the results.
  const auto make = [](DType dtype, std::uint64_t seed) {
    TestTensor few(dtype, {kPeriod});
    few.fill_random(seed, 0.5, 1.5);
    std::vector<TestTensor> list;
    for (const std::int64_t count : {1, 90'001, 0, 33, 64, 131, 140'001})
      list.emplace_back(dtype, Shape{count}).fill([&](std::int64_t i) { return few[i % kPeriod]; });
    return list;
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    INFO(to_string(dtype));
    auto parameters = make(dtype, 1), gradients = make(dtype, 2), first = make(dtype, 3), second = make(dtype, 4),
         largest = make(dtype, 5);
    const auto repeats = [&](const std::vector<TestTensor>& list) {
      for (const std::size_t t : {1, 6})
        CHECK(mismatch(
                  list[t], [&](std::int64_t i) { return list[6][i % kPeriod]; }, 0) == "");
    };
    // The tensors of several pieces; the others are changed with each number of threads.
    const auto check = [&](const auto& args) {
      CHECK(differs_with_threads(args, {&parameters[1], &parameters[6], &gradients[1], &gradients[6], &first[1],
                                        &first[6], &second[1], &second[6], &largest[1], &largest[6]}) == "");
    };
    SgdArgs plain{{}, 0.1, 0, 0, 0.01, false, false}, momentum{{}, 0.1, 0.9, 0, 0, true, false};
    AdamArgs adam{{}, 0.1, 0.9, 0.99, 1e-8, 0.01, true, false}, amsgrad = adam;
    UnscaleArgs unscale{{}, {}, 0.5};
    CopyManyArgs copy;
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      const InOut p = parameters[t].inout(), m = first[t].inout(), v = second[t].inout();
      const In g = gradients[t].in();
      plain.tensors.push_back({p, g, {}, false});
      momentum.tensors.push_back({p, g, m, false});
      adam.tensors.push_back({p, g, m, v, {}, 2});
      amsgrad.tensors.push_back({p, g, m, v, largest[t].inout(), 2});
      unscale.gradients.push_back(gradients[t].inout());
      copy.tensors.push_back({g, largest[t].out()});
    }
    check(plain);
    check(momentum);
    check(adam);
    check(amsgrad);
    TestTensor found(DType::f32, {1});
    found.set(0, 0);
    unscale.found_inf = found.inout();
    check(unscale);
    CHECK(found[0] == 0);
    check(copy);
    for (const auto* list : {&parameters, &gradients, &first, &second, &largest}) repeats(*list);
    CHECK(largest[6][5] == gradients[6][5]);
    gradients[6].set(140'000, std::numeric_limits<double>::infinity());
    for (const int threads : {1, 7}) {
      const Threads set(threads);
      found.set(0, 0);
      run(unscale);
      CHECK(found[0] == 1);
    }
    CHECK(differs_with_threads(OrderedSumArgs{{parameters[6].in(), first[6].in(), second[6].in()}, largest[6].out()},
                               {&largest[6]}) == "");
    CHECK(mismatch(
              largest[6], [&](std::int64_t i) { return rounded(dtype, parameters[6][i] + first[6][i]) + second[6][i]; },
              0) == "");
  }
}
