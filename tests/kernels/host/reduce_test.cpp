#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct ReduceProblem {
  Shape shape;
  std::vector<int> dims;  // reduced
};
const std::vector<ReduceProblem> kReduceProblems = {
    {{}, {}},
    {{1}, {0}},
    {{7}, {0}},
    {{1027}, {0}},
    {{9001}, {0}},
    {{5, 7}, {0}},
    {{5, 7}, {1}},
    {{5, 7}, {0, 1}},
    {{300, 70}, {0}},
    {{70, 300}, {1}},
    {{3, 4, 5}, {1}},
    {{3, 4, 5}, {0, 2}},
    {{3, 4, 5}, {0, 1}},
    {{3, 1, 5}, {1}},
    {{2, 3, 4, 5}, {0, 2, 3}},
    {{4, 3}, {}},
    {{2, 0, 3}, {0}},
    {{1500, 3}, {0}},
    {{2, 3, 40, 6}, {1, 3}},
    {{1, 2500, 2}, {1}},
    {{3, 0}, {1}},
    {{0, 3}, {0}},
    {{300, 5}, {1}},
    {{2, 130, 16}, {2}},
    {{3, 290, 9}, {0, 2}},  // more than take turns
};

Shape reduced_shape(const ReduceProblem& p) {
  Shape out = p.shape;
  for (const int d : p.dims) out[d] = 1;
  return out;
}

// Folds the elements that belong to each output element, in row-major order.
template <class Fold>
std::vector<double> reference(const TestTensor& x, const Shape& out, double start, Fold&& fold) {
  std::vector<double> result(static_cast<std::size_t>(element_count(out)), start);
  const Strides strides = contiguous_strides(out);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int d = out.rank() - 1; d >= 0; --d) {
      if (out[d] != 1) at += rest % x.shape()[d] * strides[d];
      rest /= x.shape()[d];
    }
    double& r = result[static_cast<std::size_t>(at)];
    r = fold(r, x[i]);
  }
  return result;
}

}  // namespace

TEST_CASE("reduce agrees with one element at a time", "[reduce]") {
  for (const ReduceProblem& p : kReduceProblems)
    for (const DType dtype : kAllDTypes)
      for (const Layout in_layout : kInputLayouts)
        for (const Layout out_layout : kOutputLayouts) {
          const Shape out = reduced_shape(p);
          const bool is_bool = dtype == DType::boolean;
          TestTensor x(dtype, p.shape, in_layout), y(dtype, out, out_layout);
          x.fill_random(21, -2, 2);
          const auto check = [&](ReduceOp op, const std::vector<double>& want, double tolerance = 1) {
            run(ReduceArgs{.op = op, .in = x.in(), .out = y.out()});
            const std::string error = mismatch(
                y, [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, tolerance, tolerance * 30);
            INFO("op " << static_cast<int>(op) << " " << to_string(p.shape) << " to " << to_string(out) << " "
                       << name_of(in_layout) << " to " << name_of(out_layout));
            if (!error.empty()) FAIL(error);
          };
          const auto biggest = reference(x, out, -kInf, [](double a, double b) { return std::max(a, b); });
          const auto smallest = reference(x, out, kInf, [](double a, double b) { return std::min(a, b); });
          if (x.count() > 0) {
            check(ReduceOp::max, biggest);
            check(ReduceOp::min, smallest);
          }
          if (is_bool) {
            check(ReduceOp::any, reference(x, out, 0, [](double a, double b) { return std::max(a, b); }));
            check(ReduceOp::all, reference(x, out, 1, [](double a, double b) { return std::min(a, b); }));
            continue;
          }
          const auto sums = reference(x, out, 0, [](double a, double b) { return a + b; });
          if (size_of(dtype) == 1) {
            auto wrapped = sums;
            for (double& s : wrapped) {
              const auto byte = static_cast<std::uint8_t>(static_cast<std::int64_t>(s));
              s = dtype == DType::i8 ? static_cast<std::int8_t>(byte) : byte;
            }
            check(ReduceOp::sum, wrapped);
          } else {
            check(ReduceOp::sum, sums);
          }
          if (is_floating(dtype)) {
            auto means = sums;
            for (double& m : means) m /= static_cast<double>(x.count()) / static_cast<double>(y.count());
            check(ReduceOp::mean, means);
            auto norms = reference(x, out, 0, [](double a, double b) { return a + b * b; });
            for (double& n : norms) n = std::sqrt(n);
            check(ReduceOp::norm, norms, dtype == DType::f64 ? 256 : 2);  // the reference adds one after the other
          }
          x.fill([](std::int64_t i) { return i % 7 == 3 ? 2.0 : 1.0; });
          auto products = reference(x, out, 1, [](double a, double b) { return a * b; });
          if (!is_floating(dtype))
            for (double& v : products) {
              if (dtype == DType::u8) v = std::fmod(v, 256);
              if (dtype == DType::i8) v = v >= 256 ? 0 : v == 128 ? -128 : v;  // powers of two
            }
          const bool fits = std::all_of(products.begin(), products.end(), [](double v) { return v < 1e9; });
          if (is_floating(dtype) || fits) check(ReduceOp::prod, products);
        }
}

TEST_CASE("f32 sums are accurate", "[reduce]") {
  constexpr std::int64_t kCount = 1 << 20;
  TestTensor x(DType::f32, {kCount}), total(DType::f32, {1});
  x.fill([](std::int64_t) { return 0.1; });
  run(ReduceArgs{.op = ReduceOp::sum, .in = x.in(), .out = total.out()});
  CHECK(total[0] == static_cast<float>(static_cast<double>(0.1f) * kCount));
  // Columns too: 2^19 rows of 2.
  TestTensor columns(DType::f32, {kCount / 2, 2}), totals(DType::f32, {1, 2});
  columns.fill([](std::int64_t) { return 0.1; });
  run(ReduceArgs{.op = ReduceOp::sum, .in = columns.in(), .out = totals.out()});
  CHECK(totals[1] == static_cast<float>(static_cast<double>(0.1f) * kCount / 2));
}

TEST_CASE("a sum does not depend on where its elements start", "[reduce]") {
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t count : {5, 100, 5000, 20000}) {
      TestTensor plain(dtype, {count}), shifted(dtype, {count}, Layout::slice), strided(dtype, {count, 3});
      plain.fill_random(4);
      shifted.fill_random(4);
      for (std::int64_t i = 0; i < count; ++i) strided.set(i * 3, plain[i]);
      View every_third = strided.view();
      every_third.shape = {count};
      every_third.strides = {3};
      const auto sum = [&](const In& in) {
        TestTensor y(dtype, {1});
        run(ReduceArgs{.op = ReduceOp::sum, .in = in, .out = y.out()});
        return y[0];
      };
      CHECK(sum(plain.in()) == sum(shifted.in()));
      CHECK(sum(plain.in()) == sum({every_third}));
    }
}

TEST_CASE("reductions of nothing", "[reduce]") {
  for (const DType dtype : kFloatingDTypes) {
    TestTensor x(dtype, {3, 0, 2}), y(dtype, {3, 1, 2});
    const auto apply = [&](ReduceOp op) {
      run(ReduceArgs{.op = op, .in = x.in(), .out = y.out()});
      return y[5];
    };
    CHECK(apply(ReduceOp::sum) == 0);
    CHECK(apply(ReduceOp::prod) == 1);
    CHECK(std::isnan(apply(ReduceOp::mean)));
    CHECK_THROWS_AS(apply(ReduceOp::max), InvalidArgument);
    CHECK_THROWS_AS(apply(ReduceOp::min), InvalidArgument);
    TestTensor none(dtype, {3, 0, 1});  // no output either: nothing to complain about
    run(ReduceArgs{.op = ReduceOp::max, .in = x.in(), .out = none.out()});
  }
  TestTensor x(DType::boolean, {0}), y(DType::boolean, {1});
  run(ReduceArgs{.op = ReduceOp::all, .in = x.in(), .out = y.out()});
  CHECK(y[0] == 1);
  run(ReduceArgs{.op = ReduceOp::any, .in = x.in(), .out = y.out()});
  CHECK(y[0] == 0);
}

TEST_CASE("max and min propagate NaN from every position", "[reduce]") {
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t count : {3, 33, 200})
      for (std::int64_t at = 0; at < count; at += 1 + count / 9) {
        TestTensor x(dtype, {count, 2}), rows(dtype, {count, 1}), columns(dtype, {1, 2});
        x.fill_random(8);
        x.set(2 * at, std::numeric_limits<double>::quiet_NaN());
        for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
          run(ReduceArgs{.op = op, .in = x.in(), .out = columns.out()});
          CHECK(std::isnan(columns[0]));
          CHECK_FALSE(std::isnan(columns[1]));
          run(ReduceArgs{.op = op, .in = x.in(), .out = rows.out()});
          CHECK(std::isnan(rows[at]));
        }
      }
}

TEST_CASE("rows of every length", "[reduce]") {
  for (const DType dtype : kFloatingDTypes)
    for (std::int64_t count = 1; count <= 200; ++count) {
      TestTensor x(dtype, {2, count}), y(dtype, {2, 1});
      const auto reduced = [&](ReduceOp op) {
        run(ReduceArgs{.op = op, .in = x.in(), .out = y.out()});
        return std::pair{y[0], y[1]};
      };
      CAPTURE(dtype, count);
      const auto n = static_cast<double>(count);
      // The extreme, and what makes the product, at a place that moves.
      x.fill([&](std::int64_t i) { return i % count == count * 2 / 3 ? -1.0 : -2.0; });
      CHECK(reduced(ReduceOp::max) == std::pair{-1.0, -1.0});
      CHECK(reduced(ReduceOp::norm).second == Approx(std::sqrt(4 * n - 3)).epsilon(dtype == DType::bf16 ? 1e-2 : 1e-3));
      CHECK(reduced(ReduceOp::sum).first == Approx(1 - 2 * n).epsilon(dtype == DType::bf16 ? 1e-2 : 1e-3));
      x.fill([&](std::int64_t i) { return i % count >= count - 3 ? 3.0 : i % count == count / 3 ? 2.0 : 1.0; });
      CHECK(reduced(ReduceOp::prod).second == (count == 1 ? 3 : count == 2 ? 9 : count <= 4 ? 27 : 54));
      x.fill([&](std::int64_t i) { return i % count == count - 1 ? 1.0 : 2.0; });
      CHECK(reduced(ReduceOp::min) == std::pair{1.0, 1.0});
    }
}

TEST_CASE("max and min propagate NaN from every position of a row", "[reduce]") {
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t count : {17, 64, 77, 200})
      for (std::int64_t at = 0; at < count; ++at) {
        TestTensor x(dtype, {2, count}), y(dtype, {2, 1});
        x.fill_random(8);
        x.set(at, std::numeric_limits<double>::quiet_NaN());
        CAPTURE(dtype, count, at);
        for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
          run(ReduceArgs{.op = op, .in = x.in(), .out = y.out()});
          CHECK(std::isnan(y[0]));
          CHECK_FALSE(std::isnan(y[1]));
        }
      }
}

TEST_CASE("integer sums wrap to the dtype", "[reduce]") {
  TestTensor x(DType::i32, {4}), y(DType::i32, {1});
  x.fill([](std::int64_t) { return std::numeric_limits<std::int32_t>::max(); });
  run(ReduceArgs{.op = ReduceOp::sum, .in = x.in(), .out = y.out()});
  CHECK(y[0] == -4);
}

TEST_CASE("arg_reduce finds the first extreme", "[reduce]") {
  for (const DType dtype : kAllDTypes)
    for (const Shape& shape : {Shape{1}, Shape{37}, Shape{5, 9}, Shape{4, 3, 50}, Shape{21, 70}, Shape{0, 3}})
      for (int dim = 0; dim < shape.rank(); ++dim)
        for (const Layout in_layout : kInputLayouts)
          for (const Layout out_layout : kOutputLayouts)
            for (const ArgReduceOp op : {ArgReduceOp::max, ArgReduceOp::min}) {
              if (shape[dim] == 0) continue;
              Shape out = shape;
              out[dim] = 1;
              TestTensor x(dtype, shape, in_layout), y(DType::i64, out, out_layout);
              x.fill_random(31, -4, 4);
              if (dtype == DType::f32)
                x.fill([&, v = x.values()](std::int64_t i) { return std::trunc(v[static_cast<std::size_t>(i)]); });
              run(ArgReduceArgs{.op = op, .dim = dim, .in = x.in(), .out = y.out()});
              const Strides strides = contiguous_strides(shape);
              const auto want = [&](std::int64_t i) {
                std::int64_t at = 0, rest = i, best = 0;
                for (int d = shape.rank() - 1; d >= 0; --d) {
                  at += rest % out[d] * strides[d];
                  rest /= out[d];
                }
                for (std::int64_t k = 1; k < shape[dim]; ++k) {
                  const double a = x[at + k * strides[dim]], b = x[at + best * strides[dim]];
                  if (op == ArgReduceOp::max ? a > b : a < b) best = k;
                }
                return static_cast<double>(best);
              };
              const std::string error = mismatch(y, want, 0);
              if (!error.empty()) FAIL(error);
            }
  TestTensor x(DType::f32, {40}), y(DType::i64, {1});
  x.fill_random(1);
  x.set(17, std::numeric_limits<double>::quiet_NaN());
  x.set(30, std::numeric_limits<double>::quiet_NaN());
  run(ArgReduceArgs{.op = ArgReduceOp::min, .dim = 0, .in = x.in(), .out = y.out()});
  CHECK(y[0] == 17);
  TestTensor empty(DType::f32, {0}), one(DType::i64, {1});
  CHECK_THROWS_AS(run(ArgReduceArgs{.op = ArgReduceOp::max, .dim = 0, .in = empty.in(), .out = one.out()}),
                  InvalidArgument);
}

TEST_CASE("arg_reduce of long columns", "[reduce]") {
  for (const std::int64_t columns : {1, 3, 7}) {  // a few of them are gathered at a time
    TestTensor x(DType::f32, {9001, columns}), y(DType::i64, {1, columns});
    x.fill_random(7);
    for (std::int64_t c = 0; c < columns; ++c) x.set((1000 * c + 5) * columns + c, 50);
    run(ArgReduceArgs{.op = ArgReduceOp::max, .dim = 0, .in = x.in(), .out = y.out()});
    CHECK(mismatch(
              y, [](std::int64_t c) { return static_cast<double>(1000 * c + 5); }, 0) == "");
  }
}

TEST_CASE("short rows that are reduced side by side have the bits of each by itself", "[reduce]") {
  for (const DType dtype : kAllDTypes)
    for (std::int64_t size = 2; size <= 17; ++size)
      for (const ReduceOp op :
           {ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min, ReduceOp::mean, ReduceOp::norm}) {
        if (dtype == DType::boolean && op != ReduceOp::max && op != ReduceOp::min) continue;
        if (!is_floating(dtype) && (op == ReduceOp::mean || op == ReduceOp::norm)) continue;
        constexpr std::int64_t kRows = 131;
        TestTensor x(dtype, {kRows, size}), y(dtype, {kRows, 1});
        x.fill_random(static_cast<std::uint64_t>(size), -2, 2);
        if (is_floating(dtype)) {
          x.set(size, std::numeric_limits<double>::quiet_NaN());
          x.set(3 * size - 1, std::numeric_limits<double>::infinity());
          for (std::int64_t i = 0; i < size; ++i) x.set(3 * size + i, -0.0);
        }
        run(ReduceArgs{.op = op, .in = x.in(), .out = y.out()});
        std::int64_t different = 0;
        for (std::int64_t row = 0; row < kRows; ++row) {
          TestTensor one(dtype, {1, size}), alone(dtype, {1, 1}), its(dtype, {1, 1});
          for (std::int64_t i = 0; i < size; ++i) one.set(i, x[row * size + i]);
          run(ReduceArgs{.op = op, .in = one.in(), .out = alone.out()});
          its.set(0, y[row]);
          different += its.bytes() != alone.bytes();
        }
        INFO(to_string(dtype) << ", " << size << " elements, op " << static_cast<int>(op));
        CHECK(different == 0);
      }
}
