#include "support/catch.h"
#include "support/threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

constexpr DType kFewRowsDTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr std::int64_t kMostRows = 9;  // one more than the kernel of few rows takes

struct FewRowsSize {
  std::int64_t depth, columns;
};
// No multiple of any vector, several strips, several parts, few columns, few rows.
constexpr FewRowsSize kFewRowsSizes[] = {{513, 517}, {67, 4099}, {4099, 67}, {530, 2003}};

// [1, rows, columns] inside of memory with `gap` elements more in each line, from an odd element on.
struct Gapped {
  TestTensor memory;
  View view;

  Gapped(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t gap, bool transposed)
      : memory(dtype, {(transposed ? columns : rows) * ((transposed ? rows : columns) + gap) + 1}) {
    const std::int64_t line = (transposed ? rows : columns) + gap;
    view = memory.view();
    view.data = static_cast<std::byte*>(view.data) + size_of(dtype);
    view.shape = {1, rows, columns};
    view.strides = transposed ? Dims{rows * columns, 1, line} : Dims{rows * columns, line, 1};
  }
  double at(std::int64_t i, std::int64_t j) const { return memory[position(i, j)]; }
  void set(std::int64_t i, std::int64_t j, double x) { memory.set(position(i, j), x); }
  std::int64_t position(std::int64_t i, std::int64_t j) const { return 1 + i * view.strides[1] + j * view.strides[2]; }
};

struct FewRowsProblem {
  Gapped a, b;

  FewRowsProblem(DType dtype, FewRowsSize size, std::int64_t gap, bool transposed)
      : a(dtype, kMostRows, size.depth, gap, false), b(dtype, size.depth, size.columns, gap, transposed) {
    for (std::int64_t i = 0; i < kMostRows; ++i)
      for (std::int64_t k = 0; k < size.depth; ++k) a.set(i, k, number(i * 7919 + k * 31 + 5));
    for (std::int64_t k = 0; k < size.depth; ++k)
      for (std::int64_t j = 0; j < size.columns; ++j) b.set(k, j, number(k * 2003 + j * 17));
  }
  View rows(std::int64_t count) const {
    View view = a.view;
    view.shape[1] = count;
    return view;
  }
  // [kMostRows, columns] in double.
  std::vector<double> product() const {
    const std::int64_t depth = b.view.shape[1], columns = b.view.shape[2];
    std::vector<double> sums(static_cast<std::size_t>(kMostRows * columns)), row(static_cast<std::size_t>(columns));
    for (std::int64_t k = 0; k < depth; ++k) {
      for (std::int64_t j = 0; j < columns; ++j) row[static_cast<std::size_t>(j)] = b.at(k, j);
      for (std::int64_t i = 0; i < kMostRows; ++i) {
        const double factor = a.at(i, k);
        for (std::int64_t j = 0; j < columns; ++j)
          sums[static_cast<std::size_t>(i * columns + j)] += factor * row[static_cast<std::size_t>(j)];
      }
    }
    return sums;
  }

  // From -1 to 1.
  static double number(std::int64_t i) { return static_cast<double>(i * 40503 % 65537) / 32768 - 1; }
};

// More dot products of 16 bits are for instructions of the processor, where it has them.
std::int64_t most_rows(DType dtype, bool transposed) { return transposed && dtype != DType::f32 ? 4 : 8; }

// In roundings of the result's dtype; 16 bits round once, after sums of floats.
double tolerance(DType dtype, std::int64_t depth) { return dtype == DType::f32 ? static_cast<double>(depth) / 8 : 2; }

}  // namespace

TEST_CASE("one to nine rows times a large matrix agree with the sum over k, with any number of threads",
          "[matmul][threads]") {
  for (const DType dtype : kFewRowsDTypes)
    for (const FewRowsSize size : kFewRowsSizes)
      for (const bool transposed : {false, true})
        for (const std::int64_t gap : {0, 3}) {
          const FewRowsProblem problem(dtype, size, gap, transposed);
          const std::vector<double> sums = problem.product();
          TestTensor bias(dtype, {size.columns});
          bias.fill_random(3, -1, 1);
          for (std::int64_t rows = 1; rows <= kMostRows; ++rows) {
            INFO(cat(dtype, " ", rows, "x", size.columns, "x", size.depth, transposed ? " transposed" : "", " gap ",
                     gap));
            TestTensor out(dtype, {1, rows, size.columns}, gap ? Layout::slice : Layout::contiguous);
            out.fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            const double terms = tolerance(dtype, size.depth);
            const MatmulArgs plain{.a = {problem.rows(rows)}, .b = {problem.b.view}, .out = out.inout()};
            if (rows <= most_rows(dtype, transposed))
              REQUIRE(differs_with_threads(plain, {&out}) == "");
            else
              run(plain);
            REQUIRE(mismatch(
                        out, [&](std::int64_t i) { return sums[static_cast<std::size_t>(i)]; }, terms, terms) == "");
            if (rows % 3 != 1) continue;
            const TestTensor before = out.fill_random(4, -1, 1);
            MatmulArgs all = plain;
            all.bias = bias.in(), all.alpha = 0.5, all.beta = -2, all.activation = Activation::relu;
            run(all);
            const auto want = [&](std::int64_t i) {
              const double x = 0.5 * sums[static_cast<std::size_t>(i)] - 2 * before[i] + bias[i % size.columns];
              return std::max(x, 0.0);
            };
            REQUIRE(mismatch(out, want, terms, terms) == "");
          }
        }
}

TEST_CASE("a row of a few times a large matrix has the same bits whatever the number of rows", "[matmul]") {
  for (const DType dtype : kFewRowsDTypes)
    for (const bool transposed : {false, true})
      for (const FewRowsSize size : kFewRowsSizes) {
        const FewRowsProblem problem(dtype, size, 3, transposed);
        const std::int64_t most = most_rows(dtype, transposed);
        TestTensor all(dtype, {1, most, size.columns});
        run(MatmulArgs{.a = {problem.rows(most)}, .b = {problem.b.view}, .out = all.inout()});
        for (std::int64_t rows = 1; rows < most; ++rows) {
          INFO(cat(dtype, " ", rows, "x", size.columns, "x", size.depth, transposed ? " transposed" : ""));
          TestTensor out(dtype, {1, rows, size.columns});
          run(MatmulArgs{.a = {problem.rows(rows)}, .b = {problem.b.view}, .out = out.inout()});
          REQUIRE(mismatch(
                      out, [&](std::int64_t i) { return all[i]; }, 0) == "");
        }
      }
}

TEST_CASE("NaN and infinity in a few rows and a large matrix reach what they are part of", "[matmul]") {
  const double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : kFewRowsDTypes)
    for (const bool transposed : {false, true})
      for (const FewRowsSize size : kFewRowsSizes)
        for (const std::int64_t k : {std::int64_t{0}, size.depth / 2, size.depth - 1})
          for (const std::int64_t j : {std::int64_t{0}, size.columns - 1}) {
            FewRowsProblem problem(dtype, size, 3, transposed);
            constexpr std::int64_t kRows = 3, kInfinite = 1;
            problem.b.set(k, j, kNan);
            problem.a.set(kInfinite, size.depth - 1 - k, kInfinity);
            TestTensor out(dtype, {1, kRows, size.columns});
            run(MatmulArgs{.a = {problem.rows(kRows)}, .b = {problem.b.view}, .out = out.inout()});
            INFO(cat(dtype, " ", size.columns, "x", size.depth, transposed ? " transposed" : "", " at ", k, ", ", j));
            int wrong = 0;
            for (std::int64_t i = 0; i < out.count(); ++i) {
              const bool is_nan = i % size.columns == j, is_infinite = !is_nan && i / size.columns == kInfinite;
              const double factor = problem.b.at(size.depth - 1 - k, i % size.columns);
              const bool is_zero = is_infinite && factor == 0;  // times infinity
              wrong += std::isnan(out[i]) != (is_nan || is_zero) || std::isinf(out[i]) != (is_infinite && !is_zero);
            }
            CHECK(wrong == 0);
          }
}
