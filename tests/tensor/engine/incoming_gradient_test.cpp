// Gradients that come into a backward as they come from sum().
#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("an incoming gradient may be an expanded number") {
  // The gradient that sum() sends back has stride 0 everywhere.
  manual_seed(4);
  using Function = Tensor (*)(const Tensor& x, const Tensor& w);
  struct Case {
    const char* name;
    Shape x, weight;
    Function f;
  };
  const Case cases[] = {
      {"matmul", {20, 30}, {30, 40}, [](const Tensor& x, const Tensor& w) { return matmul(x, w); }},
      {"batched matmul", {2, 5, 6}, {2, 6, 4}, [](const Tensor& x, const Tensor& w) { return matmul(x, w); }},
      {"linear", {20, 30}, {40, 30}, [](const Tensor& x, const Tensor& w) { return linear(x, w); }},
      {"conv2d", {2, 2, 6, 6}, {3, 2, 3, 3}, [](const Tensor& x, const Tensor& w) { return conv2d(x, w); }},
      {"batch_norm", {4, 3}, {3}, [](const Tensor& x, const Tensor& w) { return batch_norm(x, w, {}, {}); }},
      {"layer_norm", {4, 3}, {3}, [](const Tensor& x, const Tensor& w) { return layer_norm(x, {3}, w); }},
      {"max_pool2d", {1, 1, 4, 4}, {}, [](const Tensor& x, const Tensor& w) { return max_pool2d(x, 2) * w; }},
      {"softmax", {3, 4}, {}, [](const Tensor& x, const Tensor& w) { return softmax(x * w, 1); }},
      {"embedding",
       {3},
       {5, 2},
       [](const Tensor& x, const Tensor& w) {
         return embedding(w, clamp(abs(x.detach()), 0, 4).to(DType::i64)) * x.unsqueeze(1);
       }},
      {"cat",
       {3, 4},
       {3, 2},
       [](const Tensor& x, const Tensor& w) {
         return cat({x, w}, 1);
       }},
  };
  for (const DType dtype : {DType::f64, DType::f32}) {
    for (const Case& c : cases) {
      Tensor x = randn(c.x, {.dtype = dtype, .requires_grad = true}),
             w = randn(c.weight, {.dtype = dtype, .requires_grad = true});
      c.f(x, w).sum().backward();
      const Tensor dx = x.grad(), dw = w.grad();
      x.zero_grad(), w.zero_grad();
      const Tensor y = c.f(x, w);
      y.backward(ones_like(y));
      INFO(c.name);
      CHECK(allclose(dx, x.grad(), 1e-5, 1e-5));
      CHECK(allclose(dw, w.grad(), 1e-5, 1e-5));
    }
  }
  manual_seed(0);
}
