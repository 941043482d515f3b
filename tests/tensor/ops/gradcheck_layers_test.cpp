// First and second derivatives of transposed convolution, group normalisation, resampling, order along a dimension, and
// of further losses and functions.
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/gradcheck.h"

using namespace lockstep;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {

using Inputs = const std::vector<Tensor>&;

void check(const std::string& name, const Function& f, const std::vector<Tensor>& inputs) {
  INFO(name);
  CHECK(gradcheck(f, inputs) == "");
  CHECK(gradgradcheck(f, inputs) == "");
}

}  // namespace

TEST_CASE("derivatives of transposed convolution") {
  struct Case {
    const char* name;
    Shape x, weight;
    ConvTransposeGeometry geometry;
  };
  const Case cases[] = {
      {"plain", {2, 2, 3, 4}, {2, 3, 3, 2}, {}},
      {"stride and padding", {1, 2, 3, 3}, {2, 2, 3, 3}, {.stride = {2, 1}, .padding = {1, 0}}},
      {"output padding", {1, 2, 3, 2}, {2, 1, 3, 3}, {.stride = {2, 3}, .padding = 1, .output_padding = {1, 2}}},
      {"output padding beyond the stride",
       {1, 1, 2, 3},
       {1, 2, 2, 2},
       {.padding = 1, .output_padding = 2, .dilation = 3}},
      {"groups", {2, 4, 2, 2}, {4, 3, 2, 2}, {.stride = 2, .groups = 2}},
  };
  for (const Case& c : cases)
    check(c.name, [&](Inputs in) { return conv_transpose2d(in[0], in[1], in[2], c.geometry); },
          {random_leaf(c.x, 1), random_leaf(c.weight, 2), random_leaf({c.weight[1] * c.geometry.groups}, 3)});
  check("not contiguous, without bias", [](Inputs in) { return conv_transpose2d(in[0], in[1]); },
        {random_transposed_leaf({1, 2, 3, 3}, 1), random_transposed_leaf({2, 1, 2, 2}, 2)});
}

TEST_CASE("derivatives of group and layer normalisation") {
  for (const Shape& shape : {Shape{3, 4}, Shape{2, 4, 3}, Shape{2, 4, 2, 3}})
    for (const std::int64_t groups : {1, 2}) {
      const std::vector<Tensor> all{random_leaf(shape, 1), random_leaf({4}, 2), random_leaf({4}, 3)};
      check(
          "group_norm", [&](Inputs in) { return group_norm(in[0], groups, in[1], in[2], 0.1); }, all);
      check("group_norm without parameters", [&](Inputs in) { return group_norm(in[0], groups); }, {all[0]});
      check("group_norm, weight alone", [&](Inputs in) { return group_norm(in[0], groups, in[1]); },
            {all[0].detach(), all[1]});
    }
  check("layer_norm, bias alone", [](Inputs in) { return square(layer_norm(in[0], {4}, {}, in[1])); },
        {random_transposed_leaf({3, 4}, 1), random_leaf({4}, 2)});
}

TEST_CASE("derivatives of resampling") {
  for (const Size2 output : {Size2(2, 3), Size2(7, 1), Size2(5, 4)})
    check("adaptive_avg_pool2d", [&](Inputs in) { return square(adaptive_avg_pool2d(in[0], output)); },
          {random_transposed_leaf({2, 1, 5, 4}, 1)});
  for (const InterpolateOptions& options :
       {InterpolateOptions{.size = Size2(7, 2)}, InterpolateOptions{.scale_factor = 2},
        InterpolateOptions{.scale_factor = Scale2(1.5, 0.6), .mode = InterpolateMode::bilinear},
        InterpolateOptions{.size = Size2(3, 9), .mode = InterpolateMode::bilinear, .align_corners = true}})
    check("interpolate", [&](Inputs in) { return square(interpolate(in[0], options)); },
          {random_leaf({1, 2, 4, 5}, 1)});
}

TEST_CASE("derivatives of running sums and sorting") {
  for (const std::int64_t dim : {0, 1, 2})
    check("cumsum", [&](Inputs in) { return square(cumsum(in[0], dim)); }, {random_transposed_leaf({2, 3, 4}, 1)});
  check("cumsum of rank 0", [](Inputs in) { return square(cumsum(in[0], 0)); }, {random_leaf({}, 1)});
  check("sort", [](Inputs in) { return square(sort(in[0], 1, true).values) * 3; }, {random_leaf({3, 5}, 1)});
  check("topk", [](Inputs in) { return square(topk(in[0], 2, 0, false).values); }, {random_transposed_leaf({4, 3}, 1)});
}

TEST_CASE("derivatives of losses with weights") {
  const std::vector<Tensor> pair{random_leaf({2, 3}, 1), random_leaf({2, 3}, 2)};
  for (const double beta : {1.0, 0.3, 0.0})
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      check(
          "smooth_l1_loss", [&](Inputs in) { return square(smooth_l1_loss(in[0], in[1], reduction, beta)); }, pair);
  check("bce_with_logits with weights",
        [](Inputs in) { return bce_with_logits(in[0], in[1], {.weight = in[2], .pos_weight = in[3]}); },
        {random_leaf({2, 3}, 1), random_leaf({2, 3}, 2, 0.1, 0.9), random_leaf({2, 1}, 3), random_leaf({3}, 4, 1, 2)});
  const Tensor targets = from_data({1, 0, 7, 2, 7, 1}, {2, 3});
  for (const double smoothing : {0.0, 0.3})
    check("cross_entropy with an ignored class of its own",
          [&](Inputs in) {
            return square(cross_entropy(in[0], targets, {.ignore_index = 7, .label_smoothing = smoothing}));
          },
          {random_transposed_leaf({2, 3, 3}, 1)});
}

TEST_CASE("derivatives of remainders and norms") {
  check("remainder", [](Inputs in) { return square(remainder(in[0], in[1])); },
        {random_leaf({3, 4}, 1, 5, 9), random_leaf({4}, 2, 1.1, 1.4)});
  for (const double p :
       {0.5, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
    for (const bool keep : {false, true})
      check("vector_norm",
            [&](Inputs in) {
              return square(vector_norm(in[0], p, {0, 2}, keep));
            },
            {random_leaf({2, 3, 2}, 1)});
  Tensor zero = zeros({2, 2}, {.dtype = DType::f64}).set_requires_grad();
  for (const double p : {1.0, 1.5, 2.0, 3.0}) {
    zero.zero_grad();
    vector_norm(zero, p).backward();
    INFO(p);
    CHECK(equal(zero.grad(), zeros({2, 2}, {.dtype = DType::f64})));
  }
}
