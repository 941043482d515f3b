// Group and layer normalisation.
#include <limits>

#include "lockstep/kernels/api.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/tensor/nn/layers.h"
#include "support/set_threads.h"
#include "tensor/ops/support.h"

using namespace op_tests;

namespace {

// Counts the calls of group_norm and its gradient that compute in channels_last, for a scope.
class PixelCalls {
 public:
  PixelCalls() : before_(kernels::table(DeviceType::cpu)) {
    static KernelTable table;
    table = before_;
    forward = backward = 0;
    table.entry<GroupNormArgs>() = [](const Stream& stream, const GroupNormArgs& args) {
      if (args.x.view.strides[3] > 1) ++forward;
      kernels::host::kernel_table().entry<GroupNormArgs>()(stream, args);
    };
    table.entry<GroupNormGradArgs>() = [](const Stream& stream, const GroupNormGradArgs& args) {
      if (args.dy.view.strides[3] > 1 && args.dx.view.strides[3] > 1) ++backward;
      kernels::host::kernel_table().entry<GroupNormGradArgs>()(stream, args);
    };
    kernels::detail::install_table(DeviceType::cpu, table);
  }
  PixelCalls(const PixelCalls&) = delete;
  PixelCalls& operator=(const PixelCalls&) = delete;
  ~PixelCalls() { kernels::detail::install_table(DeviceType::cpu, before_); }

  static inline int forward = 0, backward = 0;

 private:
  const KernelTable& before_;
};

}  // namespace

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

TEST_CASE("group normalisation of images in channels_last is computed as they lie") {
  manual_seed(5);
  const auto close = [](const Tensor& x, const Tensor& wide) {
    const double scale = 1 + max(abs(wide)).item<double>();
    return max(abs(x.to(DType::f64) - wide)).item<double>() < 2e-6 * scale;
  };
  // Many images and few, blocks of pixels with rows left over, vectors of channels with some left over, groups of one.
  struct Case {
    Shape shape;
    std::int64_t groups;
  };
  for (const auto& [shape, groups] : {Case{{2, 6, 5, 2}, 3}, Case{{3, 7, 1, 9}, 7}, Case{{1, 40, 67, 41}, 8},
                                      Case{{19, 33, 9, 9}, 11}, Case{{17, 96, 33, 37}, 1}, Case{{2, 5000, 1, 19}, 4}})
    for (const int affine : {0, 1, 2, 3}) {
      INFO(to_string(shape) << " in " << groups << " groups, " << affine);
      const std::int64_t channels = shape[1];
      const auto images = [&] { return randn(shape).to(MemoryFormat::channels_last); };
      const auto leaf = [](const Tensor& x) { return x.clone().set_requires_grad(); };
      const Tensor values = images() * 3 + 2, gradient = images();
      Tensor x = leaf(values), wide_x = leaf(values.to(DType::f64).contiguous());
      Tensor weight, bias, wide_weight, wide_bias;
      if (affine & 1) weight = leaf(randn({channels})), wide_weight = leaf(weight.detach().to(DType::f64));
      if (affine & 2) bias = leaf(randn({channels})), wide_bias = leaf(bias.detach().to(DType::f64));
      const PixelCalls calls;
      const Tensor y = group_norm(x, groups, weight, bias, 1e-3);
      const Tensor expected = group_norm(wide_x, groups, wide_weight, wide_bias, 1e-3);
      CHECK(y.memory_format() == MemoryFormat::channels_last);
      CHECK(close(y, expected));
      y.backward(gradient, {.retain_graph = true});
      expected.backward(gradient.to(DType::f64));
      CHECK(x.grad().memory_format() == MemoryFormat::channels_last);
      CHECK(close(x.grad(), wide_x.grad()));
      if (weight.defined()) CHECK(close(weight.grad(), wide_weight.grad()));
      if (bias.defined()) CHECK(close(bias.grad(), wide_bias.grad()));
      const Tensor dx = x.grad().clone();
      for (const int count : {1, 3}) {
        const support::Threads threads(count);
        Tensor leaves[] = {x, weight, bias};
        Tensor before[3];
        for (std::size_t i = 0; i < 3; ++i)
          if (leaves[i].defined()) before[i] = leaves[i].grad().clone(), leaves[i].zero_grad();
        CHECK(equal(group_norm(x, groups, weight, bias, 1e-3), y));
        y.backward(gradient, {.retain_graph = true});
        for (std::size_t i = 0; i < 3; ++i)
          if (leaves[i].defined()) CHECK(equal(leaves[i].grad(), before[i]));
      }
      // A gradient in planes, and one with gaps.
      for (const Tensor& other : {gradient.contiguous(), cat({gradient, gradient}, 1).narrow(1, 0, channels)}) {
        x.zero_grad();
        y.backward(other, {.retain_graph = true});
        CHECK(equal(x.grad(), dx));
      }
      const InferenceMode mode;
      CHECK(equal(group_norm(cat({values, values}, 1).narrow(1, 0, channels), groups, weight, bias, 1e-3), y.detach()));
      CHECK(PixelCalls::forward == 4);
      CHECK(PixelCalls::backward == 5);
    }
  manual_seed(0);
}

TEST_CASE("group normalisation in channels_last of nothing, of one channel and of one pixel") {
  for (const Shape& shape : {Shape{0, 4, 3, 2}, Shape{2, 1, 3, 2}, Shape{2, 4, 1, 1}, Shape{2, 4, 0, 2}}) {
    INFO(to_string(shape));
    const Tensor images = randn(shape);
    Tensor x = images.to(MemoryFormat::channels_last).set_requires_grad(), plain = images.clone().set_requires_grad();
    const Tensor y = group_norm(x, 1, {}, {}, 0.1), expected = group_norm(plain, 1, {}, {}, 0.1);
    CHECK(equal(y, expected));
    y.backward(images), expected.backward(images);
    CHECK(equal(x.grad(), plain.grad()));
  }
}

TEST_CASE("gradients of group normalisation in channels_last may have any strides where a dimension is 1") {
  manual_seed(3);
  for (const Shape& shape : {Shape{1, 4, 5, 7}, Shape{2, 4, 1, 7}, Shape{2, 4, 7, 1}}) {
    INFO(to_string(shape));
    const Tensor values = randn(shape), pixels = randn({shape[0] * shape[2] * shape[3] * shape[1]});
    // [N, C, H, W] in channels_last, of which it keeps no trace in the strides of the dimension of 1.
    const Tensor gradient = shape[0] == 1   ? pixels.reshape({5, 7, 4}).permute({2, 0, 1}).unsqueeze(0)
                            : shape[2] == 1 ? pixels.reshape({2, 7, 4}).permute({0, 2, 1}).unsqueeze(2)
                                            : pixels.reshape({2, 7, 4}).permute({0, 2, 1}).unsqueeze(3);
    REQUIRE(gradient.shape() == shape);
    Tensor x = values.to(MemoryFormat::channels_last).clone().set_requires_grad();
    Tensor wide = values.to(DType::f64).clone().set_requires_grad();
    group_norm(x, 2, {}, {}, 1e-3).backward(gradient);
    group_norm(wide, 2, {}, {}, 1e-3).backward(gradient.to(DType::f64).contiguous());
    CHECK(max(abs(x.grad().to(DType::f64) - wide.grad())).item<double>() < 1e-5);
  }
  manual_seed(0);
}

TEST_CASE("group normalisation in channels_last survives a large mean, and keeps what is not finite to its group") {
  const InferenceMode mode;
  const Tensor signs = repeat(stack({full({}, -1), full({}, 1)}), {200}).reshape({2, 50, 1, 4});
  const Tensor x = (10000 + 0.25 * signs).permute({0, 3, 1, 2});
  REQUIRE(x.memory_format() == MemoryFormat::channels_last);
  CHECK(equal(group_norm(x, 2, {}, {}, 0), signs.permute({0, 3, 1, 2})));
  Tensor odd = x.clone();
  odd.select(0, 1).select(0, 2).select(0, 7).fill_(std::numeric_limits<double>::infinity());
  const Tensor y = group_norm(odd, 2, {}, {}, 0);
  CHECK(equal(y.select(0, 0), signs.permute({0, 3, 1, 2}).select(0, 0)));
  CHECK(equal(y.select(0, 1).narrow(0, 0, 2), signs.permute({0, 3, 1, 2}).select(0, 1).narrow(0, 0, 2)));
  CHECK(all(isnan(y.select(0, 1).narrow(0, 2, 2))).item<bool>());
}
