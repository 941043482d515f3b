// Convolution and transposed convolution.
#include <algorithm>
#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "tensor/ops/support.h"

using namespace op_tests;

namespace {

// Each element of x adds the kernel, at its place, to a result that is cut afterwards.
Tensor plain_conv_transpose(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeGeometry& g) {
  const Shape &s = x.shape(), &k = weight.shape();
  const std::int64_t outputs = k[1] * g.groups;
  const auto size = [](std::int64_t in, std::int64_t kernel, int stride, int padding, int dilation, int extra) {
    return (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1;
  };
  const std::int64_t height =
      size(s[2], k[2], g.stride.height, g.padding.height, g.dilation.height, g.output_padding.height);
  const std::int64_t width =
      size(s[3], k[3], g.stride.width, g.padding.width, g.dilation.width, g.output_padding.width);
  const Doubles in = values(x), w = values(weight), b = values(bias);
  Doubles y;
  for (std::int64_t i = 0; i < s[0] * outputs * height * width; ++i)
    y.push_back(b[static_cast<std::size_t>(i / height / width % outputs)]);
  for (std::int64_t n = 0; n < s[0]; ++n)
    for (std::int64_t c = 0; c < s[1]; ++c)
      for (std::int64_t o = 0; o < k[1]; ++o)
        for (std::int64_t i = 0; i < s[2] * s[3] * k[2] * k[3]; ++i) {
          const std::int64_t kw = i % k[3], kh = i / k[3] % k[2], col = i / k[3] / k[2] % s[3],
                             row = i / k[3] / k[2] / s[3];
          const std::int64_t h = row * g.stride.height - g.padding.height + kh * g.dilation.height;
          const std::int64_t v = col * g.stride.width - g.padding.width + kw * g.dilation.width;
          if (h < 0 || h >= height || v < 0 || v >= width) continue;
          const std::int64_t out = c / (s[1] / g.groups) * k[1] + o;
          y[static_cast<std::size_t>(((n * outputs + out) * height + h) * width + v)] +=
              in[static_cast<std::size_t>(((n * s[1] + c) * s[2] + row) * s[3] + col)] *
              w[static_cast<std::size_t>(((c * k[1] + o) * k[2] + kh) * k[3] + kw)];
        }
  return f64(y, {s[0], outputs, height, width});
}

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

TEST_CASE("transposed convolution adds its kernel at every place") {
  manual_seed(1);
  const ConvTransposeGeometry geometries[] = {
      {},
      {.stride = {2, 1}, .padding = {0, 1}},
      {.stride = {1, 3}, .padding = {1, 1}, .output_padding = {0, 2}, .dilation = {2, 1}},
      {.padding = 1, .output_padding = {1, 2}, .dilation = {2, 3}},
      {.stride = 2, .output_padding = {1, 0}, .dilation = {1, 2}, .groups = 2},
      {.stride = 2, .padding = 2, .output_padding = 4, .dilation = 5},
      {.stride = 3, .groups = 4},
  };
  for (const ConvTransposeGeometry& g : geometries) {
    const Tensor x = randn({2, 4, 5, 4}, kF64), weight = randn({4, 3, 3, 2}, kF64), bias = randn({3 * g.groups}, kF64);
    INFO("stride " << to_string(g.stride) << " output padding " << to_string(g.output_padding));
    const Tensor want = plain_conv_transpose(x, weight, bias, g);
    CHECK(conv_transpose2d(x, weight, bias, g).shape() == want.shape());
    CHECK(allclose(conv_transpose2d(x, weight, bias, g), want, 1e-12, 1e-12));
    CHECK(allclose(conv_transpose2d(x.to(DType::f32), weight.to(DType::f32), bias.to(DType::f32), g).to(DType::f64),
                   want, 1e-4, 1e-4));
  }
  CHECK(conv_transpose2d(zeros({0, 2, 3, 3}), zeros({2, 1, 2, 2}), {}, {.stride = 2}).shape() == Shape{0, 1, 6, 6});

  const Tensor image = zeros({1, 2, 4, 4}), weight = zeros({2, 3, 3, 3});
  CHECK_THROWS_WITH(conv_transpose2d(image, zeros({3, 2, 3, 3})),
                    Contains("[conv_transpose2d]") && Contains("f32[1, 2, 4, 4]") && Contains("f32[3, 2, 3, 3]"));
  CHECK_THROWS_WITH(conv_transpose2d(image, weight, zeros({2})), Contains("bias [3]") && Contains("f32[2]"));
  CHECK_THROWS_WITH(conv_transpose2d(image, weight, {}, {.output_padding = 1}),
                    Contains("output padding") && Contains("1x1"));
  CHECK_THROWS_WITH(conv_transpose2d(image, weight, {}, {.groups = 3}), Contains("3 groups"));
  CHECK_THROWS_WITH(conv_transpose2d(image, weight, {}, {.stride = 0}), Contains("stride 0x0"));
  CHECK_THROWS_WITH(conv_transpose2d(zeros({1, 2, 1, 1}), weight, {}, {.padding = 2}), Contains("at least 1x1"));
  CHECK_THROWS_WITH(conv_transpose2d(image, weight.to(DType::f64)), Contains("f64"));
  manual_seed(0);
}

TEST_CASE("layers of transposed convolution") {
  manual_seed(3);
  const ConvTranspose2d layer(4, 6, {3, 5}, {.stride = 2, .groups = 2});
  CHECK(layer.weight.shape() == Shape{4, 3, 3, 5});
  CHECK(layer.bias.shape() == Shape{6});
  const double bound = 1 / std::sqrt(3.0 * 3 * 5);
  CHECK(max(abs(layer.weight.tensor())).item<double>() <= bound);
  CHECK(max(abs(layer.weight.tensor())).item<double>() > 0.9 * bound);
  CHECK(max(abs(layer.bias.tensor())).item<double>() <= bound);
  const Tensor x = randn({2, 4, 5, 5});
  CHECK(equal(layer(x), conv_transpose2d(x, layer.weight.tensor(), layer.bias.tensor(), {.stride = 2, .groups = 2})));
  CHECK_FALSE(ConvTranspose2d(1, 1, 2, {.bias = false}).bias.defined());
  CHECK_THROWS_WITH(ConvTranspose2d(3, 4, 2, {.groups = 2}), Contains("[ConvTranspose2d]") && Contains("3 inputs"));
  CHECK_THROWS_WITH(ConvTranspose2d(3, 4, 0), Contains("0x0"));
  manual_seed(0);
}
