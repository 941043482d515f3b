// What transposed convolution, group normalisation, resampling, sorting and further functions compute, against plain
// formulas and numbers that PyTorch gives.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

using Doubles = std::vector<double>;
Doubles values(const Tensor& x) { return x.to_vector<double>(); }
Tensor f64(const Doubles& values, const Shape& shape) { return from_data(values, shape); }
const TensorOptions kF64{.dtype = DType::f64};
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

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

}  // namespace

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

TEST_CASE("group normalisation") {
  manual_seed(2);
  const Tensor x = randn({3, 6, 5, 2}, kF64) * 3 + 1, weight = randn({6}, kF64), bias = randn({6}, kF64);
  for (const std::int64_t groups : {1, 2, 3, 6}) {
    const Tensor grouped = x.reshape({3, groups, -1});
    const Tensor plain =
        ((grouped - mean(grouped, {2}, true)) / sqrt(var(grouped, {2}, 0, true) + 0.1)).reshape(x.shape());
    CHECK(allclose(group_norm(x, groups, weight, bias, 0.1),
                   plain * weight.reshape({6, 1, 1}) + bias.reshape({6, 1, 1}), 1e-10, 1e-10));
    CHECK(
        allclose(group_norm(x.transpose(2, 3).contiguous().transpose(2, 3), groups, {}, {}, 0.1), plain, 1e-10, 1e-10));
  }
  // 16-bit elements are normalised by statistics in f32.
  const Tensor half = (randn({4, 64}, kF64) + 30).to(DType::f16);
  const Tensor wide = layer_norm(half.to(DType::f64), {64});
  CHECK(allclose(layer_norm(half, {64}).to(DType::f64), wide, 2e-3, 2e-3));
  CHECK(group_norm(zeros({0, 4, 3}), 2).shape() == Shape{0, 4, 3});
  CHECK(group_norm(zeros({2, 4, 0}), 2).shape() == Shape{2, 4, 0});
  CHECK_THROWS_WITH(group_norm(x, 4), Contains("[group_norm]") && Contains("4 groups") && Contains("f64[3, 6, 5, 2]"));
  CHECK_THROWS_WITH(group_norm(x, 2, weight.narrow(0, 0, 3)), Contains("[6]") && Contains("[3]"));
  CHECK_THROWS_WITH(group_norm(zeros({3}), 1), Contains("f32[3]"));

  GroupNorm layer(2, 6);
  CHECK(equal(layer(x.to(DType::f32)), group_norm(x.to(DType::f32), 2)));
  CHECK(layer.state_dict().size() == 2);
  CHECK(GroupNorm(2, 6, {.affine = false}).state_dict().empty());
  CHECK_THROWS_WITH(layer(zeros({1, 4})), Contains("[GroupNorm]") && Contains("[1, 4]"));
  CHECK_THROWS_WITH(GroupNorm(4, 6), Contains("4 groups") && Contains("6"));
  manual_seed(0);
}

TEST_CASE("adaptive pooling and interpolation") {
  const Tensor x = f64({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {1, 1, 4, 4});
  CHECK(values(adaptive_avg_pool2d(x, 1)) == Doubles{7.5});
  CHECK(values(adaptive_avg_pool2d(x, 2)) == Doubles{2.5, 4.5, 10.5, 12.5});
  CHECK(equal(adaptive_avg_pool2d(x, 4), x));
  // Bins of two that overlap: [0, 2), [1, 3), [2, 4).
  CHECK(values(adaptive_avg_pool2d(x, {1, 3})) == Doubles{6.5, 7.5, 8.5});
  CHECK(adaptive_avg_pool2d(x, {0, 2}).shape() == Shape{1, 1, 0, 2});

  const Tensor row = f64({1, 2, 4}, {1, 1, 1, 3});
  const auto wide = [&](const InterpolateOptions& options) { return values(interpolate(row, options)); };
  using enum InterpolateMode;
  CHECK(wide({.size = Size2(1, 6)}) == Doubles{1, 1, 2, 2, 4, 4});
  CHECK(wide({.size = Size2(1, 2)}) == Doubles{1, 2});
  CHECK(wide({.scale_factor = Scale2(1, 1.7)}) == Doubles{1, 1, 2, 2, 4});
  CHECK(wide({.size = Size2(1, 6), .mode = bilinear}) == Doubles{1, 1.25, 1.75, 2.5, 3.5, 4});
  CHECK(wide({.size = Size2(1, 5), .mode = bilinear, .align_corners = true}) == Doubles{1, 1.5, 2, 3, 4});
  CHECK(wide({.size = Size2(1, 1), .mode = bilinear, .align_corners = true}) == Doubles{1});
  CHECK(interpolate(x, {.scale_factor = 2}).shape() == Shape{1, 1, 8, 8});
  CHECK(interpolate(x, {.scale_factor = Scale2(0.5, 1.3)}).shape() == Shape{1, 1, 2, 5});
  CHECK(interpolate(zeros({0, 1, 2, 2}), {.scale_factor = 2}).shape() == Shape{0, 1, 4, 4});
  CHECK(
      equal(Upsample({.scale_factor = 2, .mode = bilinear})(x), interpolate(x, {.scale_factor = 2, .mode = bilinear})));
  CHECK(equal(AdaptiveAvgPool2d({2, 3})(x), adaptive_avg_pool2d(x, {2, 3})));

  CHECK_THROWS_WITH(adaptive_avg_pool2d(row.squeeze(0), 2),
                    Contains("[adaptive_avg_pool2d]") && Contains("f64[1, 1, 3]"));
  CHECK_THROWS_WITH(adaptive_avg_pool2d(x, -1), Contains("-1x-1"));
  CHECK_THROWS_WITH(interpolate(x, {}), Contains("[interpolate]") && Contains("neither"));
  CHECK_THROWS_WITH(interpolate(x, {.size = 2, .scale_factor = 2}), Contains("both"));
  CHECK_THROWS_WITH(interpolate(x, {.size = 2, .align_corners = true}), Contains("align_corners"));
  CHECK_THROWS_WITH(interpolate(x, {.size = 0}), Contains("[1, 1, 0, 4]"));
  CHECK_THROWS_WITH(interpolate(x, {.scale_factor = 0.1}), Contains("at least 1x1"));
  CHECK_THROWS_WITH(interpolate(x, {.scale_factor = kNaN}), Contains("nan"));
  CHECK_THROWS_WITH(interpolate(zeros({1, 1, 0, 3}), {.size = 2}), Contains("[1, 1, 0, 3]"));
}

TEST_CASE("running sums, sorting and the largest") {
  const Tensor x = f64({3, 1, 2, -1, 5, 3}, {2, 3});
  CHECK(values(cumsum(x, 1)) == Doubles{3, 4, 6, -1, 4, 7});
  CHECK(values(cumsum(x, -2)) == Doubles{3, 1, 2, 2, 6, 5});
  CHECK(values(cumsum(x.t(), 0)) == Doubles{3, -1, 4, 4, 6, 7});
  CHECK(cumsum(from_data({1, 2}, {2}).to(DType::u8), 0).dtype() == DType::i64);
  CHECK(values(cumsum(ones({3000}, {.dtype = DType::f16}), 0))[2999] == 3000);  // 2048 + 1 is 2048 in f16
  CHECK(cumsum(f64({2}, {}), 0).item<double>() == 2);

  CHECK(values(sort(x).values) == Doubles{1, 2, 3, -1, 3, 5});
  CHECK(values(sort(x).indices) == Doubles{1, 2, 0, 0, 2, 1});
  CHECK(values(sort(x, 0, true).values) == Doubles{3, 5, 3, -1, 1, 2});
  CHECK(values(sort(x, 0, true).indices) == Doubles{0, 1, 1, 1, 0, 0});
  CHECK(values(argsort(x.t(), 0, true)) == Doubles{0, 1, 2, 2, 1, 0});
  const ValuesAndIndices special = sort(f64({kNaN, kInf, -kInf, 0, kNaN, -0.0}, {6}));
  CHECK(values(special.indices) == Doubles{2, 3, 5, 1, 0, 4});
  CHECK(std::isnan(values(special.values)[5]));
  CHECK(values(argsort(f64({0, kNaN, kInf}, {3}), 0, true)) == Doubles{1, 2, 0});
  CHECK(values(sort(f64({1, 1, 1, 0}, {4}), 0, true).indices) == Doubles{0, 1, 2, 3});
  CHECK(sort(f64({4}, {})).values.item<double>() == 4);
  CHECK(sort(zeros({2, 0})).indices.shape() == Shape{2, 0});
  CHECK(sort(x).indices.dtype() == DType::i64);

  CHECK(values(topk(x, 2).values) == Doubles{3, 2, 5, 3});
  CHECK(values(topk(x, 2).indices) == Doubles{0, 2, 1, 2});
  CHECK(values(topk(x, 1, 0, false).values) == Doubles{-1, 1, 2});
  CHECK(topk(x, 0).values.shape() == Shape{2, 0});
  const Tensor many = randn({3, 500});
  CHECK(equal(topk(many, 7).values, sort(many, 1, true).values.narrow(1, 0, 7)));

  Tensor leaf = x.clone().set_requires_grad();
  (topk(leaf, 2).values * f64({1, 2, 3, 4}, {2, 2})).sum().backward();
  CHECK(values(leaf.grad()) == Doubles{1, 0, 2, 0, 3, 4});
  CHECK_FALSE(sort(leaf).indices.requires_grad());

  CHECK_THROWS_WITH(topk(x, 4), Contains("[topk]") && Contains("[0, 3]") && Contains("got 4"));
  CHECK_THROWS_WITH(sort(x, 2), Contains("[sort]") && Contains("2"));
  CHECK_THROWS_WITH(cumsum(x, -3), Contains("[cumsum]"));
  CHECK_THROWS_WITH(argsort(Tensor()), Contains("[argsort]") && Contains("undefined"));
}

TEST_CASE("losses with weights") {
  const Tensor x = f64({1, -2, 3, 0.5}, {2, 2}), y = f64({2, 2, 1, 0.25}, {2, 2}), p = f64({1, 0, 0.25, 0.5}, {2, 2});
  CHECK(values(smooth_l1_loss(x, y, Reduction::none)) == Doubles{0.5, 3.5, 1.5, 0.03125});
  CHECK(values(smooth_l1_loss(x, y, Reduction::none, 2)) == Doubles{0.25, 3, 1, 0.015625});
  CHECK(equal(smooth_l1_loss(x, y, Reduction::sum, 0), l1_loss(x, y, Reduction::sum)));
  CHECK(smooth_l1_loss(x, y).item<double>() == (0.5 + 3.5 + 1.5 + 0.03125) / 4);
  CHECK_THROWS_WITH(smooth_l1_loss(x, y, Reduction::mean, -1), Contains("[smooth_l1_loss]") && Contains("-1"));
  CHECK_THROWS_WITH(smooth_l1_loss(x, y[0]), Contains("[2, 2]") && Contains("f64[2]"));

  const Tensor s = sigmoid(x), weight = f64({1, 2}, {2}), positive = f64({3, 0.5}, {2, 1});
  const Tensor want = -(positive * p * log(s) + (1 - p) * log(1 - s)) * weight;
  CHECK(allclose(bce_with_logits(x, p, {.weight = weight, .pos_weight = positive, .reduction = Reduction::none}), want,
                 1e-12, 1e-12));
  CHECK(bce_with_logits(x, p, {.weight = weight, .pos_weight = positive}).item<double>() ==
        Approx(mean(want).item<double>()));
  CHECK(allclose(bce_with_logits(x, p, {.weight = weight}), mean(bce_with_logits(x, p, Reduction::none) * weight)));
  // Neither overflows.
  const Tensor large = f64({1000, -1000}, {2}), ones = f64({0, 1}, {2});
  CHECK(values(bce_with_logits(large, ones, {.pos_weight = f64({2}, {1}), .reduction = Reduction::none})) ==
        Doubles{1000, 2000});
  CHECK_THROWS_WITH(bce_with_logits(x, p, {.weight = zeros({3}, kF64)}),
                    Contains("[bce_with_logits]") && Contains("[3]"));
  CHECK_THROWS_WITH(bce_with_logits(x, p, {.pos_weight = zeros({3, 2, 2}, kF64)}), Contains("[3, 2, 2]"));
}

TEST_CASE("cross entropy of 16-bit scores is summed in f32") {
  manual_seed(5);
  const Tensor logits = (randn({70000, 3}) * 4).to(DType::f16);
  const Tensor targets = full({70000}, 1).to(DType::i64);
  const double want = cross_entropy(logits.to(DType::f64), targets).item<double>();
  CHECK(cross_entropy(logits, targets).dtype() == DType::f16);
  CHECK(cross_entropy(logits, targets).item<double>() == Approx(want).epsilon(1e-3));
  Tensor leaf = logits.narrow(0, 0, 50).clone().set_requires_grad();
  cross_entropy(leaf, targets.narrow(0, 0, 50), {.reduction = Reduction::sum}).backward();
  Tensor wide = logits.narrow(0, 0, 50).to(DType::f64).set_requires_grad();
  cross_entropy(wide, targets.narrow(0, 0, 50), {.reduction = Reduction::sum}).backward();
  CHECK(allclose(leaf.grad().to(DType::f64), wide.grad(), 1e-3, 1e-3));
  CHECK_THROWS_WITH(cross_entropy(logits, targets + 2), Contains("[cross_entropy]") && Contains("got 3"));
  manual_seed(0);
}

TEST_CASE("rounded quotients, remainders and norms") {
  const Tensor a = f64({7, -7, 5.5}, {3}), b = f64({2, 2, -2}, {3});
  CHECK(values(floor_divide(a, b)) == Doubles{3, -4, -3});
  CHECK(values(remainder(a, b)) == Doubles{1, 1, -0.5});
  CHECK(values(floor_divide(a, 2)) == Doubles{3, -4, 2});
  CHECK(values(remainder(a, 2)) == Doubles{1, 1, 1.5});
  const Tensor whole = from_data({7, -7, 3}, {3});
  CHECK(floor_divide(whole, 2).dtype() == DType::i64);
  CHECK(values(floor_divide(whole, 2)) == Doubles{3, -4, 1});
  CHECK(values(remainder(whole, from_data({2, -3, 0}, {3}))) == Doubles{1, -1, 3});
  CHECK(values(remainder(whole, 2.5)) == Doubles{2, 0.5, 0.5});
  CHECK_FALSE(floor_divide(a.clone().set_requires_grad(), 2).requires_grad());
  CHECK_THROWS_WITH(remainder(a > 0.0, b > 0.0), Contains("[remainder]") && Contains("bool"));

  const Tensor x = f64({3, -4, 0, 1}, {2, 2});
  CHECK(vector_norm(x, 1).item<double>() == 8);
  CHECK(vector_norm(x, 2).item<double>() == Approx(std::sqrt(26.0)));
  CHECK(vector_norm(x, 3).item<double>() == Approx(std::cbrt(92.0)));
  CHECK(vector_norm(x, 0).item<double>() == 3);
  CHECK(values(vector_norm(x, kInf, {1})) == Doubles{4, 1});
  CHECK(values(vector_norm(x, -kInf, {0}, true)) == Doubles{0, 1});
  CHECK(vector_norm(x, kInf, {0, 1}).shape().empty());
  CHECK(vector_norm(from_data({3, 4}, {2}), 2).dtype() == DType::f32);
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
