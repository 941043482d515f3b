#include "support/catch.h"
#include "support/threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct MatmulProblem {
  std::int64_t batch, m, n, k;
};
const std::vector<MatmulProblem> kMatmulProblems = {
    {1, 1, 1, 1}, {1, 4, 5, 3},    {1, 16, 16, 16},  {1, 7, 17, 33},     {1, 1, 64, 40},  {1, 64, 1, 40},
    {2, 3, 4, 5}, {3, 30, 20, 50}, {1, 33, 65, 300}, {1, 130, 70, 20},   {1, 5, 2100, 9}, {0, 3, 3, 3},
    {1, 0, 3, 3}, {1, 3, 0, 3},    {2, 3, 4, 0},     {1, 128, 128, 600},
};

// [batch, m, n] in double.
std::vector<double> product(const TestTensor& a, const TestTensor& b) {
  const std::int64_t batch = a.shape()[0], m = a.shape()[1], k = a.shape()[2], n = b.shape()[2];
  const std::vector<double> x = a.values(), y = b.values();
  std::vector<double> z(static_cast<std::size_t>(batch * m * n), 0.0);
  for (std::int64_t i = 0; i < batch * m; ++i)
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t j = 0; j < n; ++j)
        z[static_cast<std::size_t>(i * n + j)] +=
            x[static_cast<std::size_t>(i * k + p)] * y[static_cast<std::size_t>((i / m * k + p) * n + j)];
  return z;
}

// Empty when out is alpha * product + beta * before + bias, within the rounding of k terms of at most 1.
std::string wrong(const TestTensor& out, const std::vector<double>& product, std::int64_t k, double alpha = 1,
                  double beta = 0, const TestTensor* before = nullptr, const TestTensor* bias = nullptr) {
  const auto want = [&](std::int64_t i) {
    return alpha * product[static_cast<std::size_t>(i)] + (beta == 0 ? 0 : beta * (*before)[i]) +
           (bias ? (*bias)[i % out.shape()[2]] : 0);
  };
  // f16 and bf16 sum in float: one rounding.
  const double terms = size_of(out.dtype()) == 2 ? 4 : 4 + static_cast<double>(k) / 2;
  return mismatch(out, want, terms, terms);
}

}  // namespace

TEST_CASE("matmul agrees with the sum over k", "[matmul]") {
  for (const MatmulProblem& p : kMatmulProblems)
    for (const DType dtype : kFloatingDTypes)
      for (const Layout a_layout : kInputLayouts)
        for (const Layout b_layout : kInputLayouts)
          for (const Layout out_layout : kOutputLayouts) {
            const bool big = p.m * p.n * p.k > 100000;
            if (big && (a_layout == Layout::broadcast || out_layout != Layout::contiguous) && dtype != DType::f32)
              continue;
            TestTensor a(dtype, {p.batch, p.m, p.k}, a_layout), b(dtype, {p.batch, p.k, p.n}, b_layout);
            TestTensor out(dtype, {p.batch, p.m, p.n}, out_layout), bias(dtype, {p.n}, Layout::slice);
            a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1);
            const std::vector<double> want = product(a, b);
            INFO(to_string(dtype) << " " << p.batch << "x" << p.m << "x" << p.n << "x" << p.k << " "
                                  << name_of(a_layout) << " " << name_of(b_layout) << " " << name_of(out_layout));
            // With beta 0 the output is not read: NaN stays out.
            out.fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
            run(MatmulArgs{.a = a.in(), .b = b.in(), .out = out.inout()});
            std::string error = wrong(out, want, p.k);
            if (!error.empty()) FAIL(error);
            if (big && dtype != DType::f32) continue;
            run(MatmulArgs{.a = a.in(), .b = b.in(), .bias = bias.in(), .out = out.inout()});
            error = wrong(out, want, p.k, 1, 0, nullptr, &bias);
            if (!error.empty()) FAIL("bias: " << error);
            const TestTensor before = out.fill_random(4, -1, 1);
            run(MatmulArgs{.a = a.in(), .b = b.in(), .bias = bias.in(), .out = out.inout(), .alpha = 0.5, .beta = -2});
            error = wrong(out, want, p.k, 0.5, -2, &before, &bias);
            if (!error.empty()) FAIL("bias, alpha, beta: " << error);
            out.fill_random(4, -1, 1);
            run(MatmulArgs{.a = a.in(), .b = b.in(), .out = out.inout(), .alpha = 0.5, .beta = 3});
            error = wrong(out, want, p.k, 0.5, 3, &before);
            if (!error.empty()) FAIL("alpha, beta: " << error);
          }
}

TEST_CASE("a product applies an activation before it is stored", "[matmul]") {
  const auto relu = [](double x) { return x > 0 ? x : 0; };
  const auto gelu = [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  const auto gelu_tanh = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
  };
  struct Case {
    Activation activation;
    double (*f)(double);
  };
  const Case cases[] = {{Activation::relu, relu}, {Activation::gelu, gelu}, {Activation::gelu_tanh, gelu_tanh}};
  const MatmulProblem problems[] = {{1, 5, 7, 3}, {2, 3, 4, 5}, {1, 33, 65, 40}, {2, 3, 4, 0}, {1, 0, 3, 3}};
  for (const Case& c : cases)
    for (const MatmulProblem& p : problems)
      for (const DType dtype : kFloatingDTypes)
        for (const Layout layout : kOutputLayouts)
          for (const bool transposed : {false, true})
            for (const bool with_bias : {false, true}) {
              TestTensor a(dtype, {p.batch, p.m, p.k}), b(dtype, {p.batch, p.k, p.n}), bias(dtype, {p.n}),
                  out(dtype, {p.batch, p.m, p.n}, layout);
              if (transposed) {
                a = TestTensor(dtype, {p.batch, p.m, p.k}, Layout::transposed);
                b = TestTensor(dtype, {p.batch, p.k, p.n}, Layout::transposed);
              }
              a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1), out.fill_random(4, -1, 1);
              const TestTensor before = out;
              const std::vector<double> sums = product(a, b);
              MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout(), .beta = 0.5, .activation = c.activation};
              if (with_bias) args.bias = bias.in();
              run(args);
              INFO(to_string(dtype) << " " << p.batch << "x" << p.m << "x" << p.n << "x" << p.k << " "
                                    << name_of(layout) << (with_bias ? " bias" : "")
                                    << (transposed ? " transposed" : ""));
              const double terms = size_of(dtype) == 2 ? 4 : 8 + static_cast<double>(p.k) / 2;
              const std::string error = mismatch(
                  out,
                  [&](std::int64_t i) {
                    return c.f(sums[static_cast<std::size_t>(i)] + 0.5 * before[i] + (with_bias ? bias[i % p.n] : 0));
                  },
                  terms, terms);
              if (!error.empty()) FAIL("activation " << static_cast<int>(c.activation) << ": " << error);
            }
}

TEST_CASE("the sign of a zero does not depend on the column, on the host", "[matmul]") {
  if (!test_device().is_cpu()) return;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t rows : {1, 5, 20})
      for (std::int64_t columns = 1; columns <= 40; ++columns) {
        TestTensor a(dtype, {1, rows, 3}), b(dtype, {1, 3, columns}), out(dtype, {1, rows, columns});
        a.fill([](std::int64_t) { return 0.0; }), b.fill([](std::int64_t) { return 1.0; });
        run(MatmulArgs{.a = a.in(), .b = b.in(), .out = out.inout(), .alpha = -1});
        CAPTURE(dtype, rows, columns);
        std::int64_t negative = 0;
        for (std::int64_t i = 0; i < out.count(); ++i) negative += std::signbit(out[i]);
        CHECK(negative == out.count());
      }
}

TEST_CASE("a product's activation hands NaN on", "[matmul]") {
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh})
    for (const DType dtype : kFloatingDTypes)
      for (const bool with_bias : {false, true}) {
        TestTensor a(dtype, {1, 4, 16}), b(dtype, {1, 16, 32}), bias(dtype, {32}), out(dtype, {1, 4, 32});
        a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1);
        a.set(16, std::numeric_limits<double>::quiet_NaN());  // in the second row
        MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout(), .activation = activation};
        if (with_bias) args.bias = bias.in();
        run(args);
        INFO(to_string(dtype) << " activation " << static_cast<int>(activation) << (with_bias ? " bias" : ""));
        int wrong = 0;
        for (std::int64_t i = 0; i < out.count(); ++i) wrong += std::isnan(out[i]) != (i / 32 == 1);
        CHECK(wrong == 0);
      }
}

TEST_CASE("each of what a product adds works without the others", "[matmul]") {
  struct Case {
    double alpha, beta;
    const Layout* bias;
    Activation activation;
  };
  const Layout dense = Layout::contiguous, one_number = Layout::broadcast;
  const Case cases[] = {{0.5, 0, nullptr, Activation::none},     {1, -2, nullptr, Activation::none},
                        {1, 1, nullptr, Activation::none},       {1, 0, &dense, Activation::none},
                        {1, 0, &one_number, Activation::none},   {1, 0, nullptr, Activation::relu},
                        {0.5, 0, &one_number, Activation::relu}, {1, -2, &dense, Activation::none}};
  for (const Case& c : cases)
    for (const MatmulProblem& p : {MatmulProblem{1, 33, 65, 40}, MatmulProblem{2, 5, 7, 20}})
      for (const DType dtype : kFloatingDTypes)
        for (const Layout layout : kOutputLayouts) {
          TestTensor a(dtype, {p.batch, p.m, p.k}), b(dtype, {p.batch, p.k, p.n}),
              out(dtype, {p.batch, p.m, p.n}, layout), bias(dtype, {p.n}, c.bias ? *c.bias : Layout::contiguous);
          a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1), out.fill_random(4, -1, 1);
          const TestTensor before = out;
          MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout(), .alpha = c.alpha, .beta = c.beta};
          args.activation = c.activation;
          if (c.bias) args.bias = bias.in();
          run(args);
          const std::vector<double> sums = product(a, b);
          const double terms = size_of(dtype) == 2 ? 4 : 8 + static_cast<double>(p.k) / 2;
          const auto want = [&](std::int64_t i) {
            const double x =
                c.alpha * sums[static_cast<std::size_t>(i)] + c.beta * before[i] + (c.bias ? bias[i % p.n] : 0);
            return c.activation == Activation::relu ? std::max(x, 0.0) : x;
          };
          INFO(to_string(dtype) << " " << name_of(layout) << " case " << &c - std::data(cases));
          CHECK(mismatch(out, want, terms, terms) == "");
        }
}

TEST_CASE("a row times a large matrix has the same bits with any number of threads, and gaps in both",
          "[matmul][threads]") {
  constexpr std::int64_t kDepth = 530, kColumns = 2003;
  TestTensor wide(DType::f32, {1, kDepth, kColumns + 5}), column(DType::f32, {1, kDepth, 3});
  wide.fill_random(1, -1, 1), column.fill_random(2, -1, 1);
  TestTensor a(DType::f32, {1, 1, kDepth}), b(DType::f32, {1, kDepth, kColumns}), bias(DType::f32, {kColumns});
  a.fill([&](std::int64_t i) { return column[3 * i]; });
  b.fill([&](std::int64_t i) { return wide[i / kColumns * (kColumns + 5) + i % kColumns]; });
  bias.fill_random(3, -1, 1);
  View row = column.view(), matrix = wide.view();
  row.shape = a.shape(), row.strides = {kDepth * 3, kDepth * 3, 3};
  matrix.shape = b.shape();
  const std::vector<double> sums = product(a, b);
  for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, std::pair{0.5, 0.0}, std::pair{0.5, -2.0}})
    for (const bool has_bias : {false, true}) {
      TestTensor out(DType::f32, {1, 1, kColumns});
      out.fill_random(4, -1, 1);
      const TestTensor before = out;
      MatmulArgs args{.a = {row}, .b = {matrix}, .out = out.inout(), .alpha = alpha, .beta = beta};
      if (has_bias) args.bias = bias.in();
      INFO(alpha << " " << beta << " " << has_bias);
      REQUIRE(differs_with_threads(args, {&out}) == "");
      CHECK(wrong(out, sums, kDepth, alpha, beta, &before, has_bias ? &bias : nullptr) == "");
    }
}

TEST_CASE("rows and columns of a matrix may repeat", "[matmul]") {
  for (const DType dtype : kFloatingDTypes)
    for (const int repeated : {1, 2})
      for (const bool left : {false, true}) {
        TestTensor a(dtype, {1, 20, 30}), b(dtype, {1, 30, 40}), out(dtype, {1, 20, 40});
        a.fill_random(1, -1, 1), b.fill_random(2, -1, 1);
        TestTensor& changed = left ? a : b;
        View view = changed.view();
        view.strides[repeated] = 0;
        const std::vector<double> values = changed.values();
        const std::int64_t columns = changed.shape()[2];
        run(MatmulArgs{.a = left ? In{view} : a.in(), .b = left ? b.in() : In{view}, .out = out.inout()});
        changed.fill([&](std::int64_t i) {
          return values[static_cast<std::size_t>(repeated == 1 ? i % columns : i / columns * columns)];
        });
        CHECK(wrong(out, product(a, b), 30) == "");
      }
}

TEST_CASE("one right-hand side serves a batch", "[matmul]") {
  for (const DType dtype : kFloatingDTypes) {
    TestTensor a(dtype, {6, 10, 20}), b(dtype, {1, 20, 15}), out(dtype, {6, 10, 15});
    a.fill_random(1, -1, 1), b.fill_random(2, -1, 1);
    View repeated = b.view();
    repeated.shape[0] = 6;
    repeated.strides[0] = 0;
    run(MatmulArgs{.a = a.in(), .b = {repeated}, .out = out.inout()});
    TestTensor copies(dtype, {6, 20, 15});
    copies.fill([&](std::int64_t i) { return b[i % 300]; });
    CHECK(wrong(out, product(a, copies), 20) == "");
  }
}

TEST_CASE("a row of a product does not depend on the number of rows", "[matmul]") {
  // Exactly so without oneDNN; with it for f64.
  TestTensor a(DType::f64, {1, 50, 400}), b(DType::f64, {1, 400, 30}), out(DType::f64, {1, 50, 30});
  a.fill_random(1), b.fill_random(2);
  run(MatmulArgs{.a = a.in(), .b = b.in(), .out = out.inout()});
  for (const std::int64_t rows : {1, 2, 13}) {
    View top = a.view();
    top.shape[1] = rows;
    TestTensor part(DType::f64, {1, rows, 30});
    run(MatmulArgs{.a = {top}, .b = b.in(), .out = part.inout()});
    CHECK(mismatch(
              part, [&](std::int64_t i) { return out[i]; }, 0) == "");
  }
}

TEST_CASE("products have the same bits with any number of threads", "[matmul][threads]") {
  // Blocks of rows and columns with remainders, few rows, few columns, several matrices to a piece, one, few of a size.
  // A row and a large matrix.
  const MatmulProblem problems[] = {{1, 300, 410, 70}, {1, 3, 4000, 450}, {1, 2100, 5, 450}, {1, 260, 130, 700},
                                    {13, 60, 70, 130}, {3, 150, 170, 90}, {2, 290, 300, 60}, {1, 1, 2003, 530}};
  struct Case {
    Layout a, b, out;
    bool bias;
    double alpha, beta;
    Activation activation;
  };
  const Case cases[] = {
      {Layout::contiguous, Layout::contiguous, Layout::contiguous, false, 1, 0, Activation::none},
      {Layout::contiguous, Layout::transposed, Layout::contiguous, true, 1, 0, Activation::none},
      {Layout::transposed, Layout::slice, Layout::transposed, true, 1, 0, Activation::relu},
      {Layout::slice, Layout::contiguous, Layout::slice, true, 0.5, -2, Activation::none},
  };
  int turn = 0;
  for (const MatmulProblem& p : problems)
    for (const DType dtype : kFloatingDTypes) {
      TestTensor bias(dtype, {p.n});
      bias.fill_random(3, -1, 1);
      std::vector<double> want;
      for (const Case& c : cases) {
        if (!chosen(turn)) continue;
        INFO(to_string(dtype) << " " << p.batch << "x" << p.m << "x" << p.n << "x" << p.k << " " << name_of(c.a) << " "
                              << name_of(c.b) << " " << name_of(c.out));
        TestTensor a(dtype, {p.batch, p.m, p.k}, c.a), b(dtype, {p.batch, p.k, p.n}, c.b),
            out(dtype, {p.batch, p.m, p.n}, c.out);
        a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), out.fill_random(4, -1, 1);
        const TestTensor before = out;
        MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout(), .alpha = c.alpha, .beta = c.beta};
        args.activation = c.activation;
        if (c.bias) args.bias = bias.in();
        REQUIRE(differs_with_threads(args, {&out}) == "");
        if (want.empty()) want = product(a, b);
        const double terms = size_of(dtype) == 2 ? 4 : 8 + static_cast<double>(p.k) / 2;
        const auto expected = [&](std::int64_t i) {
          const double x = c.alpha * want[static_cast<std::size_t>(i)] + (c.beta == 0 ? 0 : c.beta * before[i]) +
                           (c.bias ? bias[i % p.n] : 0);
          return c.activation == Activation::relu ? std::max(x, 0.0) : x;
        };
        REQUIRE(mismatch(out, expected, terms, terms) == "");
      }
    }
}

TEST_CASE("matrices that repeat are divided among threads", "[matmul][threads]") {
  for (const DType dtype : kFloatingDTypes)
    for (const bool left : {false, true}) {
      TestTensor a(dtype, {left ? 1 : 9, 70, 80}), b(dtype, {left ? 9 : 1, 80, 110}), out(dtype, {9, 70, 110});
      a.fill_random(1, -1, 1), b.fill_random(2, -1, 1);
      View repeated = left ? a.view() : b.view();
      repeated.shape[0] = 9;
      repeated.strides[0] = 0;
      TestTensor copies(dtype, repeated.shape);
      const TestTensor& one = left ? a : b;
      copies.fill([&](std::int64_t i) { return one[i % one.count()]; });
      const In left_in = left ? In{repeated} : a.in(), right_in = left ? b.in() : In{repeated};
      CHECK(differs_with_threads(MatmulArgs{.a = left_in, .b = right_in, .out = out.inout()}, {&out}) == "");
      CHECK(wrong(out, left ? product(copies, b) : product(a, copies), 80) == "");
    }
}

TEST_CASE("a small product stays in one piece, and one of some 16 microseconds is halved among threads",
          "[matmul][threads]") {
  const Threads threads(4);
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t side : {64, 128}) {
      if (side == 128 && dtype != DType::f32) continue;  // blocks of others may be larger
      TestTensor a(dtype, {1, side, side}), b(dtype, {1, side, side}), out(dtype, {1, side, side});
      a.fill_random(1, -1, 1), b.fill_random(2, -1, 1);
      const std::uint32_t calls = lockstep::detail::divided_calls();
      run(MatmulArgs{.a = a.in(), .b = b.in(), .out = out.inout()});
      INFO(cat(dtype, ", side ", side));
      CHECK((lockstep::detail::divided_calls() > calls) == (side == 128));
    }
}
