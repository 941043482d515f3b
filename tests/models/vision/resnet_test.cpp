// ResNets against torchvision's, with weights that are a function of their names (scripts/make_golden_models).
#include "lockstep/models/vision/resnet.h"

#include "lockstep/models/checkpoint/checkpoint.h"
#include "support/catch.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

// In [-0.5, 0.5); as make_models.numbers.
Tensor numbers(const std::string& name, const Shape& shape) {
  std::uint32_t seed = 2166136261u;
  for (const char letter : name) seed = (seed ^ static_cast<unsigned char>(letter)) * 16777619u;
  std::vector<float> values(static_cast<std::size_t>(element_count(shape)));
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    std::uint32_t x = i * 2654435761u + seed;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    values[i] = static_cast<float>(x >> 8) / 16777216.0f - 0.5f;
  }
  return from_data(values, shape);
}

Tensor drawn(const std::string& name, const Tensor& like) {
  const Tensor values = numbers(name, like.shape());
  if (like.rank() > 1) return values * (4 / std::sqrt(static_cast<double>(like.count() / like.size(0))));
  return name.ends_with("running_var") || name.ends_with("weight") ? values + 1 : values;
}

Safetensors state_of(ResNet& model) {
  Safetensors state;
  for (const NamedTensor& each : model.state_dict())
    state.tensors.push_back({each.name, each.tensor.dtype() == DType::i64 ? zeros({}, {.dtype = DType::i64})
                                                                          : drawn(each.name, each.tensor)});
  return state;
}

}  // namespace

TEST_CASE("ResNets have torchvision's names and logits") {
  const std::string name = GENERATE("resnet18", "resnet50");
  CAPTURE(name);
  ResNet model = ResNet::named(name, 10);
  CHECK(load_checkpoint(model, state_of(model), name).complete());
  model.eval();
  const NoGrad no_grad;
  const Tensor logits = model(numbers("images", {2, 3, 64, 64}));
  for (const NamedTensor& each : load_safetensors(golden_path("models/resnet")).tensors) {
    if (each.name != name) continue;
    REQUIRE(logits.shape() == each.tensor.shape());
    CHECK(max(abs(logits - each.tensor)).item<double>() < 1e-4 * max(abs(each.tensor)).item<double>());
  }
}

TEST_CASE("ResNets begin as torchvision's do") {
  manual_seed(8);
  const ResNet model = ResNet::named("resnet18");
  // 9 * 128 numbers go into what follows, 9 * 64 come in.
  const Conv2d& conv = model.layer2[0].conv1;
  CHECK(stddev(conv.weight.tensor().detach()).item<double>() == Approx(std::sqrt(2.0 / (9 * 128))).epsilon(0.02));
  CHECK(equal(model.layer2[0].bn1.weight.tensor().detach(), ones({128})));
}

TEST_CASE("ResNets have as many parameters as published") {
  const auto [name, count] = GENERATE(table<std::string, std::int64_t>({{"resnet18", 11'689'512},
                                                                        {"resnet34", 21'797'672},
                                                                        {"resnet50", 25'557'032},
                                                                        {"resnet101", 44'549'160},
                                                                        {"resnet152", 60'192'808}}));
  std::int64_t found = 0;
  for (const Parameter& parameter : ResNet::named(name).parameters()) found += parameter.tensor().count();
  CHECK(found == count);
  CHECK_THROWS_WITH(ResNet::named("resnet20"), Catch::Matchers::Contains("got 'resnet20'"));
}

}  // namespace lockstep::test
