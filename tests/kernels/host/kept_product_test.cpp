// Products with matrices that stay as they are, of which kernels keep strips, and large products in f64, which go by
// panels and blocks.
#include <algorithm>
#include <cmath>

#include "lockstep/kernels/packed_weights.h"
#include "support/catch.h"
#include "support/set_threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct KeptProblem {
  std::int64_t rows, depth, columns;
};

double kept_sum(const TestTensor& a, const TestTensor& b, const KeptProblem& p, std::int64_t row, std::int64_t column) {
  double sum = 0;
  for (std::int64_t k = 0; k < p.depth; ++k) sum += a[row * p.depth + k] * b[k * p.columns + column];
  return sum;
}

// Small whole numbers: sums of their products are exact in any order.
void fill_whole(std::vector<double>& values, std::uint64_t seed) {
  for (double& value : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<double>(seed >> 61) - 3;
  }
}

View whole_view(std::vector<double>& values, std::int64_t rows, std::int64_t columns, bool transposed) {
  return View{values.data(), {1, rows, columns},      {0, transposed ? 1 : columns, transposed ? rows : 1},
              DType::f64,    lockstep::Device::cpu(), true};
}

}  // namespace

TEST_CASE("products with kept strips agree with the sum over k, on the host", "[matmul]") {
  if (!test_device().is_cpu()) return;
  std::vector<KeptProblem> problems;
  for (std::int64_t rows = 1; rows <= 30; ++rows) problems.push_back({rows, 9, 40});
  for (const std::int64_t rows : {255, 256, 257}) problems.push_back({rows, 20, 33});
  for (const std::int64_t columns : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100}) {
    problems.push_back({3, 20, columns});
    problems.push_back({17, 20, columns});
  }
  for (const std::int64_t depth : {0, 1, 15, 16, 17, 255, 256, 257, 600}) problems.push_back({20, depth, 50});
  for (const KeptProblem& p : problems)
    for (const Layout layout : {Layout::contiguous, Layout::transposed})
      for (const bool has_bias : {false, true})
        for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu}) {
          INFO(p.rows << "x" << p.depth << "x" << p.columns << " " << name_of(layout) << (has_bias ? " bias" : ""));
          TestTensor a(DType::f32, {1, p.rows, p.depth}), b(DType::f32, {1, p.depth, p.columns}, layout),
              bias(DType::f32, {p.columns}), out(DType::f32, {1, p.rows, p.columns});
          a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1);
          out.fill([](std::int64_t) { return std::nan(""); });
          MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout(), .activation = activation};
          if (has_bias) args.bias = bias.in();
          args.packed = std::make_shared<PackedWeights>();
          run(args);
          const auto tolerance = 8 + static_cast<double>(p.depth) / 2;
          const std::string error = mismatch(
              out,
              [&](std::int64_t i) {
                const double y = kept_sum(a, b, p, i / p.columns, i % p.columns) + (has_bias ? bias[i % p.columns] : 0);
                return activation == Activation::relu   ? std::max(y, 0.0)
                       : activation == Activation::gelu ? y * 0.5 * std::erfc(-y / std::sqrt(2.0))
                                                        : y;
              },
              tolerance, tolerance);
          if (!error.empty()) FAIL(error);
          CHECK(out.guards_intact());
          CHECK(args.packed->size() == (p.rows > 1 && p.rows <= 256 ? 1 : 0));
        }
}

TEST_CASE("kept strips are those of the first call, and a transposed matrix has its own, on the host", "[matmul]") {
  if (!test_device().is_cpu()) return;
  const auto packed = std::make_shared<PackedWeights>();
  TestTensor a(DType::f32, {1, 20, 32}), b(DType::f32, {1, 32, 32}), out(DType::f32, {1, 20, 32});
  a.fill_random(1), b.fill_random(2);
  const auto multiply = [&](bool transposed) {
    View right = b.view();
    if (transposed) std::swap(right.strides[1], right.strides[2]);
    run(MatmulArgs{.a = a.in(), .b = {right}, .out = out.inout(), .packed = packed});
    return out.values();
  };
  const std::vector<double> first = multiply(false), second = multiply(true);
  CHECK(first != second);
  CHECK(packed->size() == 2);
  b.fill_random(3);
  CHECK(multiply(false) == first);
  CHECK(multiply(true) == second);
  CHECK(packed->size() == 2);
}

TEST_CASE("a product with kept strips has the same bits for any rows beside it and any thread count, on the host",
          "[matmul]") {
  if (!test_device().is_cpu()) return;
  constexpr std::int64_t kRows = 250, kDepth = 1300, kColumns = 150;  // several blocks of rows
  TestTensor a(DType::f32, {1, kRows, kDepth}), b(DType::f32, {1, kDepth, kColumns}), bias(DType::f32, {kColumns});
  a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1);
  const auto packed = std::make_shared<PackedWeights>();
  const auto rows_of = [&](std::int64_t begin, std::int64_t count) {
    TestTensor out(DType::f32, {1, count, kColumns});
    View some = a.view();
    some.data = static_cast<float*>(some.data) + begin * kDepth;
    some.shape[1] = count;
    run(MatmulArgs{.a = {some}, .b = b.in(), .bias = bias.in(), .out = out.inout(), .packed = packed});
    return out.values();
  };
  const std::vector<double> whole = rows_of(0, kRows);
  CHECK(packed->size() == 1);
  for (const int count : {1, 2, 5}) {
    const Threads threads(count);
    CHECK(rows_of(0, kRows) == whole);
  }
  for (const std::int64_t begin : {0, 13, 234, 248})
    for (const std::int64_t count : {2, 16}) {
      if (begin + count > kRows) continue;
      const std::vector<double> some = rows_of(begin, count);
      CHECK(std::equal(some.begin(), some.end(), whole.begin() + begin * kColumns));
    }
}

TEST_CASE("large products in f64 are exact where sums are, whatever lies where, on the host", "[matmul]") {
  if (!test_device().is_cpu()) return;
  // By one thread: more than one panel in both directions, and more than one block of rows, or one; remainders of all.
  constexpr std::int64_t kDepth = 1033, kColumns = 1043;
  for (const std::int64_t rows : {137, 50})
    for (const bool left : {false, true})
      for (const bool right : {false, true})
        for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {1.0, 1.0}, {-2.0, 0.5}}) {
          CAPTURE(rows, left, right, alpha, beta);
          std::vector<double> a(static_cast<std::size_t>(rows * kDepth)), b(kDepth * kColumns),
              start(static_cast<std::size_t>(rows * kColumns));
          fill_whole(a, 1), fill_whole(b, 2), fill_whole(start, 3);
          std::vector<double> c = beta == 0 ? std::vector<double>(start.size(), std::nan("")) : start;
          const Threads alone(1);
          run(MatmulArgs{.a = {whole_view(a, rows, kDepth, left)},
                         .b = {whole_view(b, kDepth, kColumns, right)},
                         .out = {whole_view(c, rows, kColumns, false)},
                         .alpha = alpha,
                         .beta = beta});
          const std::int64_t a_row = left ? 1 : kDepth, a_column = left ? rows : 1, b_row = right ? 1 : kColumns,
                             b_column = right ? kDepth : 1;
          for (std::int64_t i = 0; i < rows; i += 17)
            for (std::int64_t j = i % 5; j < kColumns; j += 7) {
              double sum = 0;
              for (std::int64_t k = 0; k < kDepth; ++k)
                sum += a[static_cast<std::size_t>(i * a_row + k * a_column)] *
                       b[static_cast<std::size_t>(k * b_row + j * b_column)];
              const auto at = static_cast<std::size_t>(i * kColumns + j);
              if (c[at] != alpha * sum + (beta == 0 ? 0 : beta * start[at])) FAIL("row " << i << ", column " << j);
            }
        }
}

TEST_CASE("products in f64 have the same bits for any number of threads, on the host", "[matmul]") {
  if (!test_device().is_cpu()) return;
  constexpr std::int64_t kRows = 150, kDepth = 300, kColumns = 300;
  TestTensor a(DType::f64, {1, kRows, kDepth}), b(DType::f64, {1, kDepth, kColumns}), bias(DType::f64, {kColumns});
  a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1);
  for (const Layout layout : {Layout::contiguous, Layout::slice, Layout::transposed})
    for (const double beta : {0.0, 1.0, 0.5}) {
      CAPTURE(name_of(layout), beta);
      const auto product = [&](int threads) {
        const Threads count(threads);
        TestTensor out(DType::f64, {1, kRows, kColumns}, layout);
        out.fill_random(4, -1, 1);
        run(MatmulArgs{.a = a.in(), .b = b.in(), .bias = bias.in(), .out = out.inout(), .beta = beta});
        return out.values();
      };
      const std::vector<double> alone = product(1);
      for (const int threads : {2, 3, 7}) CHECK(product(threads) == alone);
    }
}
