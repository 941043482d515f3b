// What a node saves is freed after backward, whoever wrote the node.
#include <deque>

#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

// As docs/embedding.md shows.
struct CubeNode final : NodeOf<1> {
  const char* name() const override { return "cube"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = grad_outputs[0] * square(x.get(*this)) * 3;
  }
  Saved x{*this};
};
Tensor cube(const Tensor& x) {
  Tensor y;
  {
    const NoGrad no_grad;
    y = x * x * x;
  }
  if (auto* node = record<CubeNode>(y, x)) node->x.save(x);
  return y;
}

// Saves any number of tensors.
struct ProductNode final : NodeOfMany {
  const char* name() const override { return "product"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    for (std::size_t i = 0; i < grad_inputs.size(); ++i) {
      grad_inputs[i] = grad_outputs[0];
      for (std::size_t other = 0; other < grad_inputs.size(); ++other)
        if (other != i) grad_inputs[i] = grad_inputs[i] * factors[other].get(*this);
    }
  }
  std::deque<Saved> factors;
};
Tensor product(const std::vector<Tensor>& factors) {
  Tensor y = factors[0].detach();
  {
    const NoGrad no_grad;
    for (std::size_t i = 1; i < factors.size(); ++i) y = y * factors[i];
  }
  if (auto* node = record_many<ProductNode>(y, factors))
    for (const Tensor& factor : factors) node->factors.emplace_back(*node).save(factor);
  return y;
}

Tensor single_leaf(double value) { return full({1}, value, {.dtype = DType::f64}).set_requires_grad(); }

}  // namespace

TEST_CASE("a node of a user's own frees its saved tensor after backward, and says so at the next one") {
  const Tensor x = single_leaf(2);
  Tensor middle = x + 1.0;
  const Ref<Storage> saved = middle.storage();
  const Tensor y = cube(middle);
  middle = Tensor();
  CHECK(saved->use_count() == 2);  // ours and the node's
  y.backward({}, {.retain_graph = true});
  CHECK(x.grad().item<double>() == 27);
  CHECK(saved->use_count() == 2);
  y.backward();
  CHECK(x.grad().item<double>() == 54);
  CHECK(saved->use_count() == 1);
  CHECK_THROWS_WITH(y.backward(), Contains("[cube]") && Contains("a second time"));
}

TEST_CASE("a node with any number of saved tensors frees them all") {
  const Tensor x = single_leaf(2);
  std::vector<Tensor> factors{x + 1.0, x + 2.0, x + 3.0};
  std::vector<Ref<Storage>> saved;
  for (const Tensor& factor : factors) saved.push_back(factor.storage());
  const Tensor y = product(factors);
  factors.clear();
  for (const auto& storage : saved) CHECK(storage->use_count() == 2);
  y.backward();
  CHECK(x.grad().item<double>() == 4 * 5 + 3 * 5 + 3 * 4);
  for (const auto& storage : saved) CHECK(storage->use_count() == 1);
  CHECK_THROWS_WITH(y.backward(), Contains("[product]") && Contains("a second time"));
}
