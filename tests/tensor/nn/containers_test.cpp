// Lists and dictionaries of modules and parameters.
#include "lockstep/tensor/nn/containers.h"

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

using Names = std::vector<std::string>;

Names member_names(const ModuleBase& module) {
  Names names;
  for (const NamedTensor& entry : module.state_dict()) names.push_back(entry.name);
  return names;
}

struct ContainerNet : Module<ContainerNet> {
  ModuleList<Linear> layers{{Linear(2, 3), Linear(3, 2)}};
  ModuleDict<Linear> heads{{"b", Linear(2, 1)}, {"a", Linear(2, 4)}};
  ParameterList scales{{Parameter(full({1}, 2)), Parameter(full({1}, 3))}};
  ParameterDict biases{{"z", Parameter(zeros({4}))}};
  Tensor forward(Tensor x) const {
    for (const Linear& layer : layers) x = layer(x);
    for (const Parameter& scale : scales) x = x * scale.on(x.device());
    return heads["a"](x) + biases["z"].on(x.device());
  }
  void members(Members& m) override {
    m("layers", layers), m("heads", heads), m("scales", scales), m("biases", biases);
  }
};

}  // namespace

TEST_CASE("containers list what they hold under positions and keys") {
  const ContainerNet net;
  CHECK(member_names(net) == Names{"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
                                   "heads.b.weight", "heads.b.bias", "heads.a.weight", "heads.a.bias", "scales.0",
                                   "scales.1", "biases.z"});
  CHECK(net.parameters().size() == 11);
  const Tensor x = ones({5, 2});
  const Tensor want = net.heads["a"](net.layers[1](net.layers[0](x)) * 6);
  CHECK(net(x).to_vector<float>() == want.to_vector<float>());
  net(x).sum().backward();
  CHECK(net.scales[1].grad().defined());
  CHECK(!net.heads["b"].weight.grad().defined());
}

TEST_CASE("containers are values") {
  ContainerNet net;
  const ContainerNet shared = net, apart = deep_copy(net);
  CHECK(shared.layers[0].weight == net.layers[0].weight);
  CHECK(!(apart.layers[0].weight == net.layers[0].weight));
  CHECK(!(apart.scales[0] == net.scales[0]));
  net.eval();
  CHECK(!net.heads["a"].is_training());
  CHECK(apart.heads["a"].is_training());
  ModuleList<Linear> grown;
  grown.push_back(Linear(1, 1));
  grown.push_back(net.layers[0]);
  CHECK(grown.count() == 2);
  CHECK(member_names(grown) == Names{"0.weight", "0.bias", "1.weight", "1.bias"});
}

TEST_CASE("containers refuse positions and keys that are not there, and keys that are no names") {
  ContainerNet net;
  CHECK_THROWS_WITH(net.layers[2], Contains("index below 2, got 2"));
  CHECK_THROWS_WITH(net.heads["c"], Contains("'c'"));
  CHECK_THROWS_WITH(net.heads.insert("a", Linear(1, 1)), Contains("a new key"));
  CHECK_THROWS_WITH(net.heads.insert("a.b", Linear(1, 1)), Contains("without a dot"));
  CHECK_THROWS_WITH(net.biases.insert("", Parameter(zeros({1}))), Contains("without a dot"));
  CHECK(net.heads.contains("b"));
  CHECK(!net.heads.contains("z"));
}
