// The numerical check of derivatives itself, and a whole network under it.
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/nn/layers.h"
#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("gradcheck itself finds wrong derivatives") {
  const Function half = [](const std::vector<Tensor>& in) { return in[0] * in[0].detach(); };
  CHECK_FALSE(gradcheck(half, {random_leaf({3}, 1)}) == "");
  // The first derivative is right, the second is cut off.
  struct CutNode final : NodeOf<1> {
    const char* name() const override { return "cut"; }
    void backward(std::span<Tensor> g, std::span<Tensor> in) override { in[0] = g[0] * (x * 2); }
    Tensor x;
  };
  const Function cut = [](const std::vector<Tensor>& in) {
    Tensor y;
    {
      NoGrad no_grad;
      y = square(in[0]);
    }
    if (auto* node = record<CutNode>(y, in[0])) node->x = in[0].detach();
    return y;
  };
  CHECK(gradcheck(cut, {random_leaf({3}, 1)}) == "");
  CHECK_FALSE(gradgradcheck(cut, {random_leaf({3}, 1)}) == "");
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
  check_gradients(
      "network",
      [&](const std::vector<Tensor>& in) {
        const SubstituteScope scope(parameters, {in.begin() + 1, in.end()});
        return square(net(in[0]));
      },
      inputs);
}
