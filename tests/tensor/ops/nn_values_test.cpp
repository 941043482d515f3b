// What the functions of neural networks compute, against plain formulas.
#include <algorithm>
#include <cmath>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

using Doubles = std::vector<double>;
Doubles values(const Tensor& x) { return x.to_vector<double>(); }
Tensor f64(const Doubles& values, const Shape& shape) { return from_data(values, shape); }
const TensorOptions kF64{.dtype = DType::f64};

// Element [n][c][h][w] of a contiguous tensor's elements; 0 outside of the image.
double pixel(const Doubles& x, const Shape& s, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
             double outside = 0) {
  if (h < 0 || w < 0 || h >= s[2] || w >= s[3]) return outside;
  return x[static_cast<std::size_t>(((n * s[1] + c) * s[2] + h) * s[3] + w)];
}

// Calls f(n, c, top, left) for the results of a window that moves over x, in row-major order; channels are `outputs`.
template <class F>
Tensor windows(const Shape& x, std::int64_t outputs, Size2 kernel, const ConvGeometry& g, F&& f) {
  const std::int64_t height =
      (x[2] + 2 * g.padding.height - g.dilation.height * (kernel.height - 1) - 1) / g.stride.height + 1;
  const std::int64_t width =
      (x[3] + 2 * g.padding.width - g.dilation.width * (kernel.width - 1) - 1) / g.stride.width + 1;
  Doubles y;
  for (std::int64_t n = 0; n < x[0]; ++n)
    for (std::int64_t c = 0; c < outputs; ++c)
      for (std::int64_t h = 0; h < height; ++h)
        for (std::int64_t w = 0; w < width; ++w)
          y.push_back(f(n, c, h * g.stride.height - g.padding.height, w * g.stride.width - g.padding.width));
  return f64(y, {x[0], outputs, height, width});
}

Tensor plain_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvGeometry& g) {
  const Doubles in = values(x), filter = values(weight), offset = values(bias);
  const Shape &s = x.shape(), &k = weight.shape();
  const Size2 kernel{static_cast<int>(k[2]), static_cast<int>(k[3])};
  return windows(s, k[0], kernel, g, [&](auto n, auto o, auto top, auto left) {
    double sum = offset[static_cast<std::size_t>(o)];
    const std::int64_t group = o / (k[0] / g.groups);
    for (std::int64_t c = 0; c < k[1]; ++c)
      for (int h = 0; h < kernel.height; ++h)
        for (int w = 0; w < kernel.width; ++w)
          sum += pixel(in, s, n, group * k[1] + c, top + h * g.dilation.height, left + w * g.dilation.width) *
                 pixel(filter, k, o, c, h, w);
    return sum;
  });
}

}  // namespace

TEST_CASE("convolution and pooling move their windows as documented") {
  manual_seed(1);
  const ConvGeometry geometries[] = {
      {},
      {.stride = {2, 1}, .padding = {0, 2}},
      {.stride = {1, 3}, .padding = {1, 1}, .dilation = {2, 1}},
      {.padding = 1, .dilation = {1, 2}, .groups = 2},
      {.stride = 2, .groups = 4},
  };
  for (const ConvGeometry& g : geometries) {
    const Tensor x = randn({2, 4, 7, 8}, kF64), weight = randn({8, 4 / g.groups, 3, 2}, kF64), bias = randn({8}, kF64);
    INFO("stride " << to_string(g.stride) << " padding " << to_string(g.padding) << " dilation "
                   << to_string(g.dilation));
    const Tensor want = plain_conv(x, weight, bias, g);
    CHECK(conv2d(x, weight, bias, g).shape() == want.shape());
    CHECK(allclose(conv2d(x, weight, bias, g), want, 1e-12, 1e-12));
    CHECK(allclose(conv2d(x.to(DType::f32), weight.to(DType::f32), bias.to(DType::f32), g).to(DType::f64), want, 1e-4,
                   1e-4));
    const Tensor swapped = x.transpose(2, 3).contiguous().transpose(2, 3);
    CHECK(allclose(conv2d(swapped, weight, bias, g), want, 1e-12, 1e-12));
  }
  const PoolGeometry pools[] = {{}, {.stride = Size2(1, 2)}, {.stride = Size2(3, 1), .padding = {1, 0}}};
  for (const PoolGeometry& p : pools) {
    const Size2 kernel{3, 2};
    const ConvGeometry g{.stride = p.stride.value_or(kernel), .padding = p.padding};
    const Tensor x = randn({2, 3, 7, 8}, kF64);
    const Doubles in = values(x);
    const Tensor largest = windows(x.shape(), 3, kernel, g, [&](auto n, auto c, auto top, auto left) {
      double best = -INFINITY;
      for (int h = 0; h < 3; ++h)
        for (int w = 0; w < 2; ++w) best = std::max(best, pixel(in, x.shape(), n, c, top + h, left + w, -INFINITY));
      return best;
    });
    const Tensor average = windows(x.shape(), 3, kernel, g, [&](auto n, auto c, auto top, auto left) {
      double sum = 0;
      for (int h = 0; h < 3; ++h)
        for (int w = 0; w < 2; ++w) sum += pixel(in, x.shape(), n, c, top + h, left + w);
      return sum / 6;
    });
    CHECK(equal(max_pool2d(x, kernel, p), largest));
    CHECK(allclose(avg_pool2d(x, kernel, p), average, 1e-12, 1e-12));
  }
  CHECK(conv2d(zeros({0, 1, 3, 3}), zeros({2, 1, 3, 3})).shape() == Shape{0, 2, 1, 1});
  manual_seed(0);
}

TEST_CASE("normalisation") {
  manual_seed(2);
  const Tensor x = randn({3, 4, 5, 2}, kF64) * 3 + 1, weight = randn({4}, kF64), bias = randn({4}, kF64);
  const auto column = [](const Tensor& of_channels) { return of_channels.reshape({4, 1, 1}); };
  const Tensor plain = (x - mean(x, {0, 2, 3}, true)) / sqrt(var(x, {0, 2, 3}, 0, true) + 0.1);
  CHECK(allclose(batch_norm(x, weight, bias, {.running_mean = {}, .running_var = {}, .eps = 0.1}),
                 plain * column(weight) + column(bias), 1e-10, 1e-10));
  CHECK(allclose(batch_norm(x.transpose(2, 3).contiguous().transpose(2, 3), {}, {},
                            {.running_mean = {}, .running_var = {}, .eps = 0.1}),
                 plain, 1e-10, 1e-10));
  const Tensor middle = randn({4}, kF64), spread = rand({4}, kF64);
  CHECK(allclose(batch_norm(x, weight, bias, {.running_mean = middle, .running_var = spread, .training = false}),
                 (x - column(middle)) / sqrt(column(spread) + 1e-5) * column(weight) + column(bias), 1e-10, 1e-10));
  const Tensor scale = randn({5, 2}, kF64), shift = randn({5, 2}, kF64);
  CHECK(allclose(layer_norm(x, {5, 2}, scale, shift, 0.1),
                 (x - mean(x, {2, 3}, true)) / sqrt(var(x, {2, 3}, 0, true) + 0.1) * scale + shift, 1e-10, 1e-10));
  CHECK(layer_norm(zeros({0, 3}), {3}).shape() == Shape{0, 3});
  manual_seed(0);
}

TEST_CASE("softmax") {
  const Tensor x = f64({1, 2, 3, 1, 1, 1}, {2, 3});
  const double total = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  CHECK(allclose(
      softmax(x, 1),
      f64({std::exp(1.0) / total, std::exp(2.0) / total, std::exp(3.0) / total, 1. / 3, 1. / 3, 1. / 3}, {2, 3})));
  CHECK(allclose(log_softmax(x, -1), log(softmax(x, -1))));
  CHECK(allclose(softmax(x.t(), 0), softmax(x, 1).t()));
  CHECK(allclose(sum(softmax(x, 0), {0}), ones({3}, kF64)));
  CHECK(softmax(f64({5}, {}), 0).item<double>() == 1);
  CHECK(softmax(zeros({0, 3}), 1).shape() == Shape{0, 3});
}

TEST_CASE("losses of class targets") {
  manual_seed(3);
  const std::int64_t classes[] = {2, 0, -100, 1, 2, 2};
  const double weights[] = {0.5, 2, 1.5};
  const Tensor logits = randn({2, 3, 3}, kF64);  // [batch, classes, positions]
  const Tensor targets = from_data(std::span<const std::int64_t>(classes), {2, 3});
  const Tensor weight = f64({0.5, 2, 1.5}, {3});
  const Doubles scores = values(log_softmax(logits, 1));
  for (const bool weighted : {false, true}) {
    for (const double smoothing : {0.0, 0.3}) {
      Doubles each;
      double total = 0, weight_sum = 0;
      for (std::size_t i = 0; i < 6; ++i) {
        const auto score = [&](std::size_t c) { return scores[(i / 3 * 3 + c) * 3 + i % 3]; };
        double loss = 0;
        if (classes[i] >= 0) {
          const auto target = static_cast<std::size_t>(classes[i]);
          const double own = weighted ? weights[target] : 1;
          loss = -(1 - smoothing) * own * score(target);
          for (std::size_t c = 0; c < 3; ++c) loss -= smoothing / 3 * (weighted ? weights[c] : 1) * score(c);
          weight_sum += own;
        }
        each.push_back(loss);
        total += loss;
      }
      const Tensor w = weighted ? weight : Tensor();
      const auto loss = [&](Reduction reduction) {
        return cross_entropy(logits, targets, {.weight = w, .reduction = reduction, .label_smoothing = smoothing});
      };
      INFO(weighted << ' ' << smoothing);
      CHECK(allclose(loss(Reduction::none), f64(each, {2, 3}), 1e-12, 1e-12));
      CHECK(loss(Reduction::sum).item<double>() == Approx(total));
      CHECK(loss(Reduction::mean).item<double>() == Approx(total / weight_sum));
      if (smoothing == 0)
        CHECK(nll_loss(log_softmax(logits, 1), targets, {.weight = w}).item<double>() == Approx(total / weight_sum));
    }
  }
  // A class of weight 0 takes part in the smoothing, an ignored one does not.
  const Tensor none =
      cross_entropy(zeros({1, 2}), from_data({0}, {1}),
                    {.weight = from_data({0.0, 1.0}, {2}), .reduction = Reduction::sum, .label_smoothing = 0.5});
  CHECK(none.item<double>() == Approx(0.25 * std::log(2.0)));
  CHECK(values(cross_entropy(zeros({2, 3}), from_data({2, 1}, {2}),
                             {.ignore_index = 2, .reduction = Reduction::none}))[0] == 0);
  CHECK(std::isnan(cross_entropy(zeros({1, 2}), from_data({-100}, {1})).item<double>()));
  manual_seed(0);
}

TEST_CASE("losses of values") {
  const Tensor x = f64({1, -2, 3, 0}, {2, 2}), y = f64({2, 2, 1, 1}, {2, 2}), p = f64({1, 0, 0.25, 0.5}, {2, 2});
  CHECK(mse_loss(x, y).item<double>() == (1 + 16 + 4 + 1) / 4.0);
  CHECK(mse_loss(x, y, Reduction::sum).item<double>() == 22);
  CHECK(values(mse_loss(x, y, Reduction::none)) == Doubles{1, 16, 4, 1});
  CHECK(l1_loss(x, y).item<double>() == 2);
  CHECK(values(l1_loss(x, y, Reduction::none)) == Doubles{1, 4, 2, 1});
  const Tensor s = sigmoid(x);
  CHECK(allclose(bce_with_logits(x, p, Reduction::none), -(p * log(s) + (1 - p) * log(1 - s)), 1e-12, 1e-12));
  // Probabilities as targets: the mean is over the batch.
  const Tensor wanted = f64({0.9, 0.1, 0.3, 0.7}, {2, 2});
  CHECK(cross_entropy(x, wanted).item<double>() == Approx(-sum(wanted * log_softmax(x, 1)).item<double>() / 2));
  CHECK(cross_entropy(x, wanted, {.label_smoothing = 0.2}).item<double>() ==
        Approx(-sum((wanted * 0.8 + 0.1) * log_softmax(x, 1)).item<double>() / 2));
  CHECK(cross_entropy(x, wanted, {.weight = f64({1, 3}, {2}), .reduction = Reduction::sum}).item<double>() ==
        Approx(-sum(wanted * f64({1, 3}, {2}) * log_softmax(x, 1)).item<double>()));
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
