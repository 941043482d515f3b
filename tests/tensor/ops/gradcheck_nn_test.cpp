// First and second derivatives of the functions of neural networks.
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/gradcheck.h"

using namespace lockstep;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {

void check(const std::string& name, const Function& f, const std::vector<Tensor>& inputs) {
  INFO(name);
  CHECK(gradcheck(f, inputs) == "");
  CHECK(gradgradcheck(f, inputs) == "");
}

Tensor classes(const std::vector<std::int64_t>& values, const Shape& shape) { return from_data(values, shape); }

}  // namespace

TEST_CASE("derivatives of linear and embedding") {
  const Function f = [](const std::vector<Tensor>& in) {
    return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor());
  };
  check("linear", f, {random_leaf({4, 3}, 1), random_leaf({2, 3}, 2), random_leaf({2}, 3)});
  check("linear without bias", f, {random_leaf({4, 3}, 1), random_leaf({2, 3}, 2)});
  check("linear of a vector", f, {random_leaf({3}, 1), random_leaf({2, 3}, 2), random_leaf({2}, 3)});
  check("linear of rank 3", f, {random_leaf({2, 2, 3}, 1), random_transposed_leaf({2, 3}, 2), random_leaf({2}, 3)});
  check("linear, not contiguous", f, {random_transposed_leaf({4, 3}, 1), random_leaf({1, 3}, 2), random_leaf({1}, 3)});
  check("linear of nothing", f, {random_leaf({0, 3}, 1), random_leaf({2, 3}, 2), random_leaf({2}, 3)});
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh}) {
    const Function activated = [=](const std::vector<Tensor>& in) {
      return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), activation);
    };
    check("linear with an activation", activated,
          {random_leaf({2, 2, 3}, 4), random_leaf({2, 3}, 5), random_leaf({2}, 6)});
    check("linear with an activation, without bias", activated,
          {random_leaf({4, 3}, 7), random_transposed_leaf({2, 3}, 8)});
  }
  check("embedding",
        [](const std::vector<Tensor>& in) {
          return square(embedding(in[0], classes({1, 0, 1, 3}, {2, 2})));
        },
        {random_leaf({4, 3}, 1)});

  Tensor weight = random_leaf({3, 2}, 1);
  embedding(weight, classes({0, 1, 1, 2}, {4}), {.padding_index = 1}).sum().backward();
  CHECK(weight.grad().to_vector<double>() == std::vector<double>{1, 1, 0, 0, 1, 1});
}

TEST_CASE("derivatives of convolution and of its adjoints") {
  struct Case {
    const char* name;
    Shape x, weight;
    ConvGeometry geometry;
  };
  const Case cases[] = {
      {"plain", {2, 2, 4, 5}, {3, 2, 3, 3}, {}},
      {"1x1", {2, 3, 2, 2}, {2, 3, 1, 1}, {}},
      {"padding and stride", {1, 2, 5, 4}, {2, 2, 3, 2}, {.stride = {2, 1}, .padding = {1, 0}}},
      {"dilation", {1, 1, 6, 5}, {2, 1, 2, 3}, {.padding = 1, .dilation = 2}},
      {"groups", {2, 4, 3, 3}, {4, 2, 2, 2}, {.groups = 2}},
      {"depthwise", {1, 3, 4, 4}, {3, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 3}},
      {"a stride that leaves a rest", {1, 1, 6, 6}, {1, 1, 3, 3}, {.stride = 2}},
  };
  for (const Case& c : cases) {
    check(std::string("conv2d ") + c.name,
          [&](const std::vector<Tensor>& in) { return conv2d(in[0], in[1], in[2], c.geometry); },
          {random_leaf(c.x, 1), random_leaf(c.weight, 2), random_leaf({c.weight[0]}, 3)});
    const Shape y = conv2d(zeros(c.x), zeros(c.weight), {}, c.geometry).shape();
    check(std::string("conv2d_grad_input ") + c.name,
          [&](const std::vector<Tensor>& in) { return conv2d_grad_input(in[0], in[1], c.x, c.geometry); },
          {random_leaf(y, 1), random_leaf(c.weight, 2)});
    check(std::string("conv2d_grad_weight ") + c.name,
          [&](const std::vector<Tensor>& in) { return conv2d_grad_weight(in[0], in[1], c.weight, c.geometry); },
          {random_leaf(y, 1), random_leaf(c.x, 2)});
  }
  check("conv2d, not contiguous", [](const std::vector<Tensor>& in) { return conv2d(in[0], in[1]); },
        {random_transposed_leaf({2, 2, 3, 3}, 1), random_transposed_leaf({1, 2, 2, 2}, 2)});
}

TEST_CASE("derivatives of pooling") {
  const PoolGeometry geometries[] = {{}, {.stride = 1}, {.stride = Size2(2, 1), .padding = 1}};
  for (const PoolGeometry& geometry : geometries) {
    check("max_pool2d",
          [&](const std::vector<Tensor>& in) {
            return square(max_pool2d(in[0], {2, 3}, geometry));
          },
          {random_leaf({2, 2, 5, 6}, 1)});
    check("avg_pool2d",
          [&](const std::vector<Tensor>& in) {
            return square(avg_pool2d(in[0], {2, 3}, geometry));
          },
          {random_leaf({2, 2, 5, 6}, 1)});
  }
  check("max_pool2d dilated",
        [](const std::vector<Tensor>& in) { return square(max_pool2d(in[0], 2, {.stride = 1, .dilation = 2})); },
        {random_transposed_leaf({1, 2, 4, 4}, 1)});
}

TEST_CASE("derivatives of normalisation") {
  for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 4}, Shape{2, 2, 2, 3}}) {
    const Shape channels{shape[1]};
    const std::vector<Tensor> all{random_leaf(shape, 1), random_leaf(channels, 2), random_leaf(channels, 3)};
    check(
        "batch_norm in training", [](const std::vector<Tensor>& in) { return batch_norm(in[0], in[1], in[2], {}); },
        all);
    check("batch_norm without weight", [](const std::vector<Tensor>& in) { return batch_norm(in[0], {}, {}, {}); },
          {all[0]});
    const BatchNormState fixed{.running_mean = random_leaf(channels, 4).detach(),
                               .running_var = random_leaf(channels, 5, 0.3, 2).detach(),
                               .training = false};
    check(
        "batch_norm in evaluation",
        [&](const std::vector<Tensor>& in) { return batch_norm(in[0], in[1], in[2], fixed); }, all);
    check(
        "batch_norm in evaluation without running statistics",
        [&](const std::vector<Tensor>& in) {
          return batch_norm(in[0], in[1], in[2], {.running_mean = {}, .running_var = {}, .training = false});
        },
        all);
  }
  const Function frozen = [](const std::vector<Tensor>& in) { return batch_norm(in[0], in[1], {}, {}); };
  check("batch_norm, weight alone", frozen, {random_leaf({4, 3}, 1).detach(), random_leaf({3}, 2)});
  check("layer_norm", [](const std::vector<Tensor>& in) { return layer_norm(in[0], {4}, in[1], in[2]); },
        {random_leaf({3, 4}, 1), random_leaf({4}, 2), random_leaf({4}, 3)});
  check("layer_norm over two",
        [](const std::vector<Tensor>& in) {
          return layer_norm(in[0], {2, 3}, in[1]);
        },
        {random_transposed_leaf({2, 2, 3}, 1), random_leaf({2, 3}, 2)});
}

TEST_CASE("derivatives of softmax and dropout") {
  for (const std::int64_t dim : {0, 1, -1}) {
    check("softmax", [&](const std::vector<Tensor>& in) { return softmax(in[0], dim); }, {random_leaf({2, 3, 2}, 1)});
    check("log_softmax", [&](const std::vector<Tensor>& in) { return log_softmax(in[0], dim); },
          {random_transposed_leaf({2, 3, 2}, 1)});
  }
  check("softmax of rank 0", [](const std::vector<Tensor>& in) { return softmax(in[0], 0) * in[0]; },
        {random_leaf({}, 1)});
  check("dropout",
        [](const std::vector<Tensor>& in) {
          manual_seed(3);  // the same mask each time
          return square(dropout(in[0], 0.4));
        },
        {random_leaf({3, 4}, 1)});
}

TEST_CASE("derivatives of losses") {
  const Tensor targets = classes({1, 0, 2, -100}, {4});
  const Tensor pixels = classes({1, 0, 2, -100, 1, 1}, {2, 3});
  const Tensor weight = from_data({0.5, 2.0, 1.5}, {3}, {.dtype = DType::f64});
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    check("nll_loss",
          [&](const std::vector<Tensor>& in) {
            return square(nll_loss(in[0], targets, {.weight = weight, .reduction = reduction}));
          },
          {random_leaf({4, 3}, 1)});
    check("cross_entropy",
          [&](const std::vector<Tensor>& in) { return cross_entropy(in[0], targets, {.reduction = reduction}); },
          {random_leaf({4, 3}, 1)});
    check("cross_entropy of images, smoothed and weighted",
          [&](const std::vector<Tensor>& in) {
            return cross_entropy(in[0], pixels, {.weight = weight, .reduction = reduction, .label_smoothing = 0.2});
          },
          {random_leaf({2, 3, 3}, 1)});
    check("cross_entropy of probabilities",
          [&](const std::vector<Tensor>& in) {
            return cross_entropy(in[0], in[1], {.weight = weight, .reduction = reduction, .label_smoothing = 0.1});
          },
          {random_leaf({2, 3}, 1), random_leaf({2, 3}, 2, 0.1, 0.9)});
    check("mse_loss", [&](const std::vector<Tensor>& in) { return mse_loss(in[0], in[1], reduction); },
          {random_leaf({2, 3}, 1), random_leaf({2, 3}, 2)});
    check("l1_loss", [&](const std::vector<Tensor>& in) { return square(l1_loss(in[0], in[1], reduction)); },
          {random_leaf({2, 3}, 1), random_leaf({2, 3}, 2)});
    check("bce_with_logits", [&](const std::vector<Tensor>& in) { return bce_with_logits(in[0], in[1], reduction); },
          {random_leaf({2, 3}, 1), random_leaf({2, 3}, 2, 0.1, 0.9)});
  }
}

TEST_CASE("derivatives of a network of layers, by its input and by its parameters") {
  DefaultDType f64(DType::f64);
  manual_seed(1);
  Sequential net(Conv2d(1, 2, 3, {.padding = 1}), BatchNorm2d(2), Tanh(), MaxPool2d(2), Flatten(), Linear(8, 3),
                 LayerNorm(3), GELU(), Linear(3, 2, {.bias = false}));
  std::vector<Tensor> inputs{random_leaf({2, 1, 4, 4}, 5)};
  std::vector<Parameter> parameters = net.parameters();
  for (const Parameter& parameter : parameters)
    inputs.push_back(parameter.tensor().detach().clone().set_requires_grad());
  check(
      "network",
      [&](const std::vector<Tensor>& in) {
        const SubstituteScope scope(parameters, {in.begin() + 1, in.end()});
        return square(net(in[0]));
      },
      inputs);
}
