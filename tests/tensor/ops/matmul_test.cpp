// Matrix products and linear.
#include <array>

#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("matrix products") {
  const auto reference = [](const Tensor& a, const Tensor& b) {
    const auto x = values(a), y = values(b);
    const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    Doubles z(static_cast<std::size_t>(m * n), 0.0);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t l = 0; l < k; ++l)
          z[static_cast<std::size_t>(i * n + j)] +=
              x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>(l * n + j)];
    return f64(z, {m, n});
  };
  manual_seed(1);
  const TensorOptions options{.dtype = DType::f64};
  for (const auto& [m, k, n] : {std::array<int, 3>{2, 3, 4}, {1, 1, 1}, {17, 33, 5}, {1, 64, 9}, {40, 1, 3}}) {
    const Tensor a = randn({m, k}, options), b = randn({k, n}, options);
    INFO(m << ' ' << k << ' ' << n);
    CHECK(allclose(matmul(a, b), reference(a, b), 1e-12, 1e-12));
    CHECK(allclose(matmul(a.t().contiguous().t(), b.t().contiguous().t()), reference(a, b), 1e-12, 1e-12));
    CHECK(allclose(matmul(a.to(DType::f32), b.to(DType::f32)).to(DType::f64), reference(a, b), 1e-4, 1e-4));
    CHECK(allclose(linear(a, b.t()), reference(a, b), 1e-12, 1e-12));
    const Tensor bias = randn({n}, options);
    CHECK(allclose(linear(a, b.t().contiguous(), bias), reference(a, b) + bias, 1e-12, 1e-12));
    CHECK(allclose(matmul(a[0], b), reference(a, b)[0], 1e-12, 1e-12));
    CHECK(allclose(matmul(a, b.select(1, 0)), reference(a, b).select(1, 0), 1e-12, 1e-12));
    const Tensor batch = matmul(stack({a, a * 2, a * 3}), b);
    CHECK(batch.shape() == Shape{3, m, n});
    CHECK(allclose(batch[2], reference(a, b) * 3, 1e-12, 1e-12));
    CHECK(allclose(matmul(a, stack({b, b * 2}))[1], reference(a, b) * 2, 1e-12, 1e-12));
    CHECK(allclose(matmul(stack({a, a * 2}).unsqueeze(1), stack({b, b * 3, b}))[1][1], reference(a, b) * 6, 1e-12,
                   1e-12));
  }
  CHECK(matmul(f64({1, 2}, {2}), f64({3, 4}, {2})).item<double>() == 11);
  CHECK(matmul(f64({1, 2}, {2}), f64({3, 4}, {2})).shape() == Shape{});
  CHECK(values(matmul(zeros({2, 0}, options), zeros({0, 2}, options))) == Doubles{0, 0, 0, 0});
  CHECK(values(linear(zeros({2, 0}, options), zeros({1, 0}, options), f64({7}, {1}))) == Doubles{7, 7});
  CHECK(matmul(zeros({0, 3}), zeros({3, 2})).shape() == Shape{0, 2});
  CHECK(matmul(zeros({0, 2, 3}), zeros({0, 3, 4})).shape() == Shape{0, 2, 4});
}

// Every third row of five: the next matrix begins before a fourth step would.
TEST_CASE("matrix products of slices whose last step the next matrix cuts short") {
  manual_seed(2);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    INFO(to_string(dtype));
    const Tensor rows = randn({3, 5, 8}).to(dtype).slice(1, 1, 5, 3), other = randn({3, 33, 8}).to(dtype);
    const Tensor columns = randn({3, 8, 5}).to(dtype).slice(2, 1, 5, 3);
    const auto same = [&](const Tensor& a, const Tensor& b) {
      return allclose(matmul(a, b), matmul(a.contiguous(), b.contiguous()), 1e-2, 1e-2);
    };
    CHECK(same(other, rows.transpose(1, 2)));
    CHECK(same(rows, other.transpose(1, 2)));
    CHECK(same(other, columns));
    CHECK(same(columns.transpose(1, 2), other.transpose(1, 2)));
    Tensor leaf = randn({3, 5, 8}).to(dtype).set_requires_grad();
    matmul(other, leaf.slice(1, 1, 5, 3).transpose(1, 2)).sum().backward();
    CHECK(allclose(leaf.grad()[0][1], other[0].sum({0}), 1e-2, 1e-1));
  }
}

TEST_CASE("linear with an activation is the activation of linear, with a gradient and without") {
  manual_seed(5);
  struct Case {
    Activation activation;
    Tensor (*f)(const Tensor&);
  };
  const Case cases[] = {{Activation::none, [](const Tensor& x) { return x; }},
                        {Activation::relu, [](const Tensor& x) { return relu(x); }},
                        {Activation::gelu, [](const Tensor& x) { return gelu(x); }},
                        {Activation::gelu_tanh, [](const Tensor& x) { return gelu(x, GeluForm::tanh); }}};
  for (const Case& c : cases)
    for (const bool with_bias : {true, false})
      for (const Shape& shape : {Shape{3, 4}, Shape{2, 5, 4}, Shape{4}, Shape{0, 4}}) {
        const Tensor x = randn(shape, {.dtype = DType::f64, .requires_grad = true}),
                     w = randn({6, 4}, {.dtype = DType::f64, .requires_grad = true}),
                     b = with_bias ? randn({6}, {.dtype = DType::f64, .requires_grad = true}) : Tensor();
        INFO("activation " << static_cast<int>(c.activation) << " of " << to_string(shape));
        const Tensor want = c.f(linear(x, w, b)), y = linear(x, w, b, c.activation);
        CHECK(y.requires_grad());
        CHECK(allclose(y, want, 1e-12, 1e-12));
        {
          const NoGrad off;
          CHECK(allclose(linear(x, w, b, c.activation), want, 1e-12, 1e-12));
        }
        const Tensor upstream = randn(want.shape(), {.dtype = DType::f64});
        std::vector<Tensor> inputs{x, w};
        if (with_bias) inputs.push_back(b);
        const auto gradients = [&](const Tensor& of) {
          for (Tensor& input : inputs) input.zero_grad();
          of.backward(upstream);
          std::vector<Tensor> found;
          for (const Tensor& input : inputs) found.push_back(input.grad());
          return found;
        };
        const std::vector<Tensor> expected = gradients(want), got = gradients(y);
        for (std::size_t i = 0; i < inputs.size(); ++i) CHECK(allclose(got[i], expected[i], 1e-12, 1e-12));
      }
  // Saved for the gradient: relu's output must not change in between.
  const Tensor x = randn({2, 3}, {.requires_grad = true}), w = randn({2, 3});
  Tensor y = linear(x, w, {}, Activation::relu);
  {
    const NoGrad off;
    y.add_(1.0);
  }
  CHECK_THROWS_AS(y.sum().backward(), Error);
  manual_seed(0);
}
