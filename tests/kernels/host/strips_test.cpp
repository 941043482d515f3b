// Products of one matrix with strips of 16 columns, which lie side by side in the result: recurrent layers' steps.
#include <algorithm>
#include <cmath>

#include "lockstep/runtime/host/compute_threads.h"
#include "support/catch.h"
#include "support/set_threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct StripProblem {
  std::int64_t rows, depth, strips;
};

// [rows, columns] as a batch of `batch`, that many elements apart.
View batch_of(const View& matrix, std::int64_t batch, std::int64_t columns, std::int64_t apart) {
  View view = matrix;
  view.shape = {batch, matrix.shape[0], columns};
  view.strides = {apart, matrix.strides[0], matrix.strides[1]};
  return view;
}

void multiply(const View& a, const View& strips, const View& out, double beta, double alpha = 1) {
  const std::int64_t count = strips.shape[0];
  run(MatmulArgs{.a = {batch_of(a, count, a.shape[1], 0)},
                 .b = {strips},
                 .bias = {},
                 .out = {batch_of(out, count, 16, 16)},
                 .alpha = alpha,
                 .beta = beta});
}

}  // namespace

TEST_CASE("products with strips agree with the sum over k", "[matmul]") {
  std::vector<StripProblem> problems;
  for (std::int64_t rows = 1; rows <= 20; ++rows) problems.push_back({rows, 9, 5});
  for (const std::int64_t depth : {1, 255, 256, 257, 600}) problems.push_back({7, depth, 3});
  for (const std::int64_t strips : {1, 2, 4, 7}) problems.push_back({3, 40, strips});
  problems.insert(problems.end(), {{33, 256, 64}, {4, 0, 2}, {0, 4, 2}, {203, 70, 2}});
  for (const StripProblem& p : problems)
    for (const DType dtype : {DType::f32, DType::f64}) {
      INFO(to_string(dtype) << " " << p.rows << " rows, depth " << p.depth << ", " << p.strips << " strips");
      const std::int64_t columns = 16 * p.strips;
      TestTensor a(dtype, {p.rows, p.depth}), strips(dtype, {p.strips, p.depth, 16});
      TestTensor before(dtype, {p.rows, columns});
      a.fill_random(1, -1, 1), strips.fill_random(2, -1, 1), before.fill_random(3, -1, 1);
      for (const double beta : {0.0, 1.0, 0.5})
        for (const double alpha : {1.0, -2.0}) {
          TestTensor out(dtype, {p.rows, columns}), again(dtype, {p.rows, columns});
          const auto start = [&](std::int64_t i) { return beta == 0 ? std::nan("") : before[i]; };
          out.fill(start), again.fill(start);  // with beta 0 the result is not read: NaN stays out
          multiply(a.view(), strips.view(), out.view(), beta, alpha);
          multiply(a.view(), strips.view(), again.view(), beta, alpha);
          CHECK(out.values() == again.values());
          const std::string error = mismatch(
              out,
              [&](std::int64_t i) {
                const std::int64_t row = i / columns, column = i % columns;
                double sum = 0;
                for (std::int64_t k = 0; k < p.depth; ++k)
                  sum += a[row * p.depth + k] * strips[(column / 16 * p.depth + k) * 16 + column % 16];
                return alpha * sum + (beta == 0 ? 0 : beta * before[i]);
              },
              8 + static_cast<double>(p.depth), 8 + static_cast<double>(p.depth));
          CHECK(error == "");
        }
    }
}

TEST_CASE("products with strips have biases and activations as others do", "[matmul]") {
  constexpr std::int64_t kRows = 5, kDepth = 20, kStrips = 3, kColumns = 16 * kStrips;
  TestTensor a(DType::f32, {kRows, kDepth}), strips(DType::f32, {kStrips, kDepth, 16}), bias(DType::f32, {16});
  a.fill_random(1, -1, 1), strips.fill_random(2, -1, 1), bias.fill_random(3, -1, 1);
  for (const bool biased : {false, true})
    for (const Activation activation : {Activation::none, Activation::relu}) {
      TestTensor out(DType::f32, {kRows, kColumns});
      MatmulArgs args{.a = {batch_of(a.view(), kStrips, kDepth, 0)},
                      .b = {strips.view()},
                      .bias = {},
                      .out = {batch_of(out.view(), kStrips, 16, 16)},
                      .activation = activation};
      if (biased) args.bias = bias.in();
      run(args);
      const auto expected = [&](std::int64_t i) {
        const std::int64_t row = i / kColumns, column = i % kColumns;
        double sum = biased ? bias[column % 16] : 0;
        for (std::int64_t k = 0; k < kDepth; ++k)
          sum += a[row * kDepth + k] * strips[(column / 16 * kDepth + k) * 16 + column % 16];
        return activation == Activation::relu ? std::max(sum, 0.0) : sum;
      };
      INFO(biased << " " << (activation == Activation::relu));
      CHECK(mismatch(out, expected, 16, 16) == "");
    }
}

TEST_CASE("many rows of few strips are divided among threads, with the same bits, on the host", "[matmul]") {
  constexpr std::int64_t kRows = 999, kDepth = 128, kColumns = 32;
  TestTensor a(DType::f32, {kRows, kDepth}), strips(DType::f32, {2, kDepth, 16});
  a.fill_random(1, -1, 1), strips.fill_random(2, -1, 1);
  std::vector<double> by_one;
  for (const int threads : {1, 3}) {
    const Threads set(threads);
    TestTensor out(DType::f32, {kRows, kColumns});
    const std::uint32_t divided = lockstep::detail::divided_calls();
    multiply(a.view(), strips.view(), out.view(), 0);
    CHECK(lockstep::detail::divided_calls() - divided == (threads > 1 ? 2 : 0));  // packing, and the product
    if (threads == 1) by_one = out.values();
    CHECK(out.values() == by_one);
  }
}

TEST_CASE("a row of a product with strips has the same bits whatever rows are beside it", "[matmul]") {
  constexpr std::int64_t kRows = 19, kDepth = 300, kStrips = 5, kColumns = 16 * kStrips;
  TestTensor a(DType::f32, {kRows, kDepth}), strips(DType::f32, {kStrips, kDepth, 16});
  TestTensor all(DType::f32, {kRows, kColumns});
  a.fill_random(1, -1, 1), strips.fill_random(2, -1, 1);
  multiply(a.view(), strips.view(), all.view(), 0);
  const std::vector<double> want = all.values();
  for (std::int64_t row = 0; row < kRows; ++row) {
    TestTensor one(DType::f32, {1, kColumns});
    View alone = a.view();
    alone.shape = {1, kDepth};
    alone.data = static_cast<float*>(alone.data) + row * kDepth;
    multiply(alone, strips.view(), one.view(), 0);
    const auto begin = want.begin() + row * kColumns;
    CHECK(one.values() == std::vector<double>(begin, begin + kColumns));
  }
}
