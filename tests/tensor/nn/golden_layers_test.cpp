#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

template <class M>
Results apply(GoldenCase& c, M module) {
  return {c.load(std::move(module))(c[0])};
}
// A layer without options.
template <class M>
Results plain(GoldenCase& c) {
  return apply(c, M());
}
template <class M>
Results batch_norm_layer(GoldenCase& c) {
  return apply(c, M(c.get<int>("num_features"), {.momentum = c.get("momentum", 0.1)}));
}

struct Mlp : Module<Mlp> {
  Sequential body{Linear(9, 16), GELU(), LayerNorm(16), Linear(16, 4)};
  Tensor forward(const Tensor& x) const { return log_softmax(body(x), -1); }
  void members(Members& m) override { m("body", body); }
};

// Of a residual network.
struct ResidualBlock : Module<ResidualBlock> {
  ResidualBlock(int inputs, int outputs, int stride)
      : conv1(inputs, outputs, 3, {.stride = stride, .padding = 1, .bias = false}),
        conv2(outputs, outputs, 3, {.padding = 1, .bias = false}),
        bn1(outputs),
        bn2(outputs) {
    if (stride != 1 || inputs != outputs)
      downsample.emplace(Conv2d(inputs, outputs, 1, {.stride = stride, .bias = false}), BatchNorm2d(outputs));
  }
  Tensor forward(const Tensor& x) const {
    const Tensor y = bn2(conv2(relu(bn1(conv1(x)))));
    return relu(y + (downsample ? (*downsample)(x) : x));
  }
  void members(Members& m) override {
    m("conv1", conv1), m("bn1", bn1), m("conv2", conv2), m("bn2", bn2), m("downsample", downsample);
  }

  Conv2d conv1, conv2;
  BatchNorm2d bn1, bn2;
  std::optional<Sequential> downsample;
};

struct ResNet : Module<ResNet> {
  Conv2d stem{3, 4, 3, {.padding = 1}};
  std::vector<ResidualBlock> layers{ResidualBlock(4, 4, 1), ResidualBlock(4, 8, 2)};
  Linear fc{8, 5};
  Tensor forward(const Tensor& x) const {
    Tensor y = relu(stem(x));
    for (const ResidualBlock& layer : layers) y = layer(y);
    return fc(mean(y, {2, 3}));
  }
  void members(Members& m) override { m("stem", stem), m("layers", layers), m("fc", fc); }
};

}  // namespace

TEST_CASE("golden: layers and models") {
  test::check_golden(
      "layers", device_at(0),
      {{"Linear",
        [](GoldenCase& c) {
          return apply(c, Linear(c.get<int>("inputs"), c.get<int>("outputs"), {.bias = c.get("bias", true)}));
        }},
       {"Conv2d",
        [](GoldenCase& c) {
          return apply(c, Conv2d(c.get<int>("inputs"), c.get<int>("outputs"), c.size2("kernel"),
                                 {.stride = c.size2("stride"),
                                  .padding = c.size2("padding"),
                                  .dilation = c.size2("dilation"),
                                  .groups = c.get<int>("groups"),
                                  .bias = c.get<bool>("bias")}));
        }},
       {"BatchNorm1d", batch_norm_layer<BatchNorm1d>},
       {"BatchNorm2d", batch_norm_layer<BatchNorm2d>},
       {"BatchNorm1d_average",
        [](GoldenCase& c) {
          const BatchNorm1d& layer = c.load(BatchNorm1d(c.get<int>("num_features"), {.momentum = std::nullopt}));
          layer(c[0] * 3);
          return Results{layer(c[0])};
        }},
       {"LayerNorm", [](GoldenCase& c) { return apply(c, LayerNorm(Shape(c.integers("normalized_shape")))); }},
       {"RMSNorm",
        [](GoldenCase& c) {
          const auto eps = c.has("eps") ? std::optional(c.get("eps")) : std::nullopt;
          return apply(c, RMSNorm(Shape(c.integers("normalized_shape")), {.eps = eps}));
        }},
       {"Embedding",
        [](GoldenCase& c) {
          return apply(c, Embedding(c.get<int>("rows"), c.get<int>("size"), {.padding_index = c.get<int>("padding")}));
        }},
       {"ReLU", plain<ReLU>},
       {"Tanh", plain<Tanh>},
       {"Sigmoid", plain<Sigmoid>},
       {"SiLU", plain<SiLU>},
       {"Hardswish", plain<Hardswish>},
       {"GELU", plain<GELU>},
       {"MaxPool2d", [](GoldenCase& c) { return apply(c, MaxPool2d(c.get<int>("kernel"))); }},
       {"AvgPool2d", [](GoldenCase& c) { return apply(c, AvgPool2d(c.get<int>("kernel"))); }},
       {"AdaptiveAvgPool2d", [](GoldenCase& c) { return apply(c, AdaptiveAvgPool2d(c.size2("size"))); }},
       {"Upsample",
        [](GoldenCase& c) {
          return apply(c, Upsample({.scale_factor = c.get("scale"), .mode = InterpolateMode::bilinear}));
        }},
       {"GroupNorm", [](GoldenCase& c) { return apply(c, GroupNorm(c.get<int>("groups"), c.get<int>("channels"))); }},
       {"ConvTranspose2d",
        [](GoldenCase& c) {
          return apply(c, ConvTranspose2d(c.get<int>("inputs"), c.get<int>("outputs"), c.size2("kernel"),
                                          {.stride = c.size2("stride"),
                                           .padding = c.size2("padding"),
                                           .output_padding = c.size2("output_padding"),
                                           .groups = c.get<int>("groups"),
                                           .bias = c.get<bool>("bias"),
                                           .dilation = c.size2("dilation")}));
        }},
       {"Mlp", plain<Mlp>},
       {"ResNet", plain<ResNet>},
       {"file_resnet",
        [](GoldenCase& c) { return Results{test::model_from_file<ResNet>("model_resnet", c[0].device())(c[0])}; }}});
}
