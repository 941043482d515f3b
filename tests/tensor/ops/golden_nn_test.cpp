#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

// Operand i, or undefined where the case has no such.
Tensor optional(const GoldenCase& c, std::size_t i) { return i < c.operands() ? c[i] : Tensor(); }
Reduction reduction(const GoldenCase& c) {
  const std::string name = c.text("reduction");
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}
Results conv2d_of(GoldenCase& c) {
  return {conv2d(c[0], c[1], optional(c, 2),
                 {.stride = c.size2("stride"),
                  .padding = c.size2("padding"),
                  .dilation = c.size2("dilation"),
                  .groups = c.get<int>("groups")})};
}
Results normalised(GoldenCase& c, Activation activation) {
  return {batch_norm(c[0], c[1], c[2],
                     {.running_mean = c[3].clone(),
                      .running_var = c[4].clone(),
                      .training = c.get<bool>("training"),
                      .momentum = c.get("momentum"),
                      .eps = c.get("eps")},
                     activation)};
}
Results batch_norm_of(GoldenCase& c) { return normalised(c, Activation::none); }

}  // namespace

TEST_CASE("golden: the functions of neural networks") {
  test::check_golden(
      "nn", device_at(0),
      {{"matmul", [](GoldenCase& c) { return Results{matmul(c[0], c[1])}; }},
       {"linear", [](GoldenCase& c) { return Results{linear(c[0], c[1], optional(c, 2))}; }},
       {"conv2d", conv2d_of},
       {"linear_activation",
        [](GoldenCase& c) {
          const std::string name = c.text("activation");
          return Results{linear(c[0], c[1], c[2],
                                name == "relu"   ? Activation::relu
                                : name == "gelu" ? Activation::gelu
                                                 : Activation::gelu_tanh)};
        }},
       {"conv_transpose2d",
        [](GoldenCase& c) {
          return Results{conv_transpose2d(c[0], c[1], c[2],
                                          {.stride = c.size2("stride"),
                                           .padding = c.size2("padding"),
                                           .output_padding = c.size2("output_padding"),
                                           .dilation = c.size2("dilation"),
                                           .groups = c.get<int>("groups")})};
        }},
       {"adaptive_avg_pool2d", [](GoldenCase& c) { return Results{adaptive_avg_pool2d(c[0], c.size2("size"))}; }},
       {"interpolate",
        [](GoldenCase& c) {
          return Results{interpolate(
              c[0], {.size = c.size2("size"),
                     .mode = c.text("mode") == "nearest" ? InterpolateMode::nearest : InterpolateMode::bilinear,
                     .align_corners = c.get<bool>("align")})};
        }},
       {"interpolate_scale",
        [](GoldenCase& c) {
          const auto scale = c.get<std::vector<double>>("scale");
          return Results{interpolate(c[0], {.scale_factor = Scale2(scale.at(0), scale.at(1))})};
        }},
       {"group_norm",
        [](GoldenCase& c) { return Results{group_norm(c[0], c.get<int>("groups"), c[1], c[2], c.get("eps"))}; }},
       {"max_pool2d",
        [](GoldenCase& c) {
          return Results{max_pool2d(c[0], c.size2("kernel"),
                                    {.stride = c.size2("stride"),
                                     .padding = c.size2("padding"),
                                     .dilation = c.size2("dilation"),
                                     .ceil_mode = c.get("ceil", false)})};
        }},
       {"avg_pool2d",
        [](GoldenCase& c) {
          PoolGeometry geometry{.stride = c.size2("stride"),
                                .padding = c.size2("padding"),
                                .ceil_mode = c.get("ceil", false),
                                .count_include_pad = c.get("include", true)};
          if (c.has("divisor")) geometry.divisor = c.get<int>("divisor");
          return Results{avg_pool2d(c[0], c.size2("kernel"), geometry)};
        }},
       {"batch_norm", batch_norm_of},
       {"batch_norm_relu", [](GoldenCase& c) { return normalised(c, Activation::relu); }},
       {"layer_norm",
        [](GoldenCase& c) { return Results{layer_norm(c[0], Shape(c.integers("shape")), c[1], c[2], c.get("eps"))}; }},
       {"layer_norm_plain",
        [](GoldenCase& c) { return Results{layer_norm(c[0], Shape(c.integers("shape")), {}, {}, c.get("eps"))}; }},
       {"rms_norm",
        [](GoldenCase& c) { return Results{rms_norm(c[0], Shape(c.integers("shape")), c[1], c.get("eps"))}; }},
       {"rms_norm_plain", [](GoldenCase& c) { return Results{rms_norm(c[0], Shape(c.integers("shape")))}; }},
       {"softmax", [](GoldenCase& c) { return Results{softmax(c[0], c.get<int>("dim"))}; }},
       {"log_softmax", [](GoldenCase& c) { return Results{log_softmax(c[0], c.get<int>("dim"))}; }},
       {"nll_loss",
        [](GoldenCase& c) {
          return Results{
              nll_loss(c[0], c[1], {.weight = c[2], .ignore_index = c.get<int>("ignore"), .reduction = reduction(c)})};
        }},
       {"cross_entropy",
        [](GoldenCase& c) {
          return Results{cross_entropy(c[0], c[1],
                                       {.weight = c[2],
                                        .ignore_index = c.get<int>("ignore"),
                                        .reduction = reduction(c),
                                        .label_smoothing = c.get("smoothing")})};
        }},
       {"cross_entropy_plain",
        [](GoldenCase& c) { return Results{cross_entropy(c[0], c[1], {.reduction = reduction(c)})}; }},
       {"mse_loss", [](GoldenCase& c) { return Results{mse_loss(c[0], c[1], reduction(c))}; }},
       {"l1_loss", [](GoldenCase& c) { return Results{l1_loss(c[0], c[1], reduction(c))}; }},
       {"bce_with_logits", [](GoldenCase& c) { return Results{bce_with_logits(c[0], c[1], reduction(c))}; }},
       {"smooth_l1_loss",
        [](GoldenCase& c) { return Results{smooth_l1_loss(c[0], c[1], reduction(c), c.get("beta"))}; }},
       {"bce_weighted",
        [](GoldenCase& c) {
          return Results{
              bce_with_logits(c[0], c[1], BceOptions{.weight = c[2], .pos_weight = c[3], .reduction = reduction(c)})};
        }},
       {"cross_entropy_soft",
        [](GoldenCase& c) {
          return Results{cross_entropy(c[0], c[1], {.reduction = reduction(c), .label_smoothing = c.get("smoothing")})};
        }},
       {"embedding_max_norm",
        [](GoldenCase& c) {
          const Tensor weight = c[0].clone();
          const Tensor rows = embedding(weight, c[1], {.max_norm = c.get("norm"), .norm_type = c.get("power")});
          return Results{rows, weight};
        }},
       {"embedding_by_frequency",
        [](GoldenCase& c) {
          return Results{
              embedding(c[0], c[1], {.padding_index = c.get<std::int64_t>("padding"), .scale_grad_by_freq = true})};
        }},
       {"embedding", [](GoldenCase& c) {
          return Results{embedding(
              c[0], c[1],
              {.padding_index = c.has("padding") ? std::optional(c.get<std::int64_t>("padding")) : std::nullopt})};
        }}});
}
