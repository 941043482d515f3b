#include "support/golden.h"

#include <cmath>
#include <cstdlib>
#include <set>

#include "lockstep/runtime/strings.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"

namespace lockstep::test {
namespace {

using nlohmann::json;

// The operand in the leaf that is stored, as make_golden views it.
Tensor viewed(const Tensor& leaf, const json& input) {
  const auto layout = input.at("layout").get<std::string>();
  const auto sizes = input.at("shape").get<std::vector<std::int64_t>>();
  if (layout == "transposed") {
    Dims dims;
    for (int dim = leaf.rank(); dim-- > 0;) dims.push_back(dim);
    return leaf.permute(dims);
  }
  if (layout == "expanded") return leaf.expand(Shape(sizes));
  if (layout == "offset") return leaf.narrow(0, 1, sizes.front()).narrow(-1, 2, sizes.back());
  return leaf;
}

// How far a result of this dtype may be from the reference, relative to the largest element.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-11;
    case DType::f32:
      return 1e-5;
    case DType::f16:
      return 2e-3;
    case DType::bf16:
      return 1.6e-2;
    default:
      return 0;
  }
}

}  // namespace

GoldenCase::GoldenCase(const json& description, const TensorMap& file, Device device)
    : description_(description), attributes_(description.at("attributes")), file_(file), device_(device) {
  for (const json& input : description.at("inputs")) {
    Tensor leaf = stored(input.at("tensor"));
    if (input.at("gradient").get<bool>()) leaf.set_requires_grad();
    leaves_.push_back(leaf);
    operands_.push_back(viewed(leaf, input));
  }
}

Tensor GoldenCase::stored(const std::string& key) const { return file_.at(key).clone().to(device_); }

void GoldenCase::take(std::shared_ptr<ModuleBase> module) {
  std::vector<NamedTensor> state;
  for (const auto& [name, key] : description_.at("state").items()) {
    const Tensor tensor = stored(key);
    if (is_floating(tensor.dtype())) module->to(tensor.dtype());
    state.push_back({name, tensor});
  }
  module->to(device_);
  module->load_state_dict(state);
  module->train(get<bool>("train"));
  module_ = std::move(module);
}

void GoldenCase::compare(const std::string& what, const Tensor& got, const std::string& key) {
  const Tensor& expected = file_.at(key);
  if (!got.defined()) {
    found_ += what + " is undefined\n";
    return;
  }
  if (got.shape() != expected.shape() || got.dtype() != expected.dtype() || got.device() != device_) {
    found_ += cat(what, ": expected ", expected.describe(), ", got ", got.describe(), '\n');
    return;
  }
  const auto want = expected.to(DType::f64).to_vector<double>();
  const auto have = got.to(DType::f64).to_vector<double>();
  double largest = 1e-2;
  for (double value : want)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  const double allowed = tolerance(got.dtype()) * description_.at("loose").get<double>() * largest;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (have[i] == want[i] || (std::isnan(have[i]) && std::isnan(want[i]))) continue;
    if (std::abs(have[i] - want[i]) <= allowed) continue;
    found_ += cat(what, ": element ", i, " of ", expected.describe(), ": expected ", want[i], ", got ", have[i], '\n');
    return;
  }
}

void GoldenCase::compare_gradients(const std::vector<Tensor>& outputs) {
  if (!description_.contains("output_gradients")) return;
  std::vector<Tensor> roots, weights;
  const json& keys = description_.at("output_gradients");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (keys.at(i).is_null()) continue;
    if (!outputs[i].requires_grad()) {
      found_ += cat("output ", i, " has no gradient\n");
      return;
    }
    roots.push_back(outputs[i]);
    weights.push_back(stored(keys.at(i)));
  }
  backward(roots, weights);
  const json& gradients = description_.at("input_gradients");
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    if (!gradients.at(i).is_null())
      compare(cat("gradient of input ", i), leaves_[i].grad(), gradients.at(i));
    else if (leaves_[i].grad().defined())
      found_ += cat("input ", i, " has a gradient\n");
  }
  std::map<std::string, Tensor> of_parameters;
  if (module_)
    for (const NamedParameter& named : module_->named_parameters())
      of_parameters.emplace(named.name, named.parameter.grad());
  for (const auto& [name, key] : description_.at("parameter_gradients").items())
    compare("gradient of " + name, of_parameters[name], key);
}

std::string GoldenCase::differences(const Function& function) {
  found_.clear();
  const std::vector<Tensor> outputs = function(*this);
  const json& keys = description_.at("outputs");
  if (outputs.size() != keys.size()) return cat(keys.size(), " results expected, got ", outputs.size(), '\n');
  for (std::size_t i = 0; i < outputs.size(); ++i) compare(cat("output ", i), outputs[i], keys.at(i));
  compare_gradients(outputs);
  if (description_.contains("state_after")) {
    std::map<std::string, Tensor> state;
    for (const NamedTensor& named : module_->state_dict()) state.emplace(named.name, named.tensor);
    for (const auto& [name, key] : description_.at("state_after").items())
      compare(name + " afterwards", state[name], key);
  }
  return found_;
}

// Where the tree was built, unless the environment says where it is now.
namespace {
std::string golden_folder() {
  const char* folder = std::getenv("LOCKSTEP_GOLDEN_FOLDER");
  return folder ? folder : LOCKSTEP_GOLDEN_FOLDER;
}
}  // namespace

std::string golden_path(const std::string& name) { return cat(golden_folder(), "/", name, ".safetensors"); }
std::string golden_model(const std::string& name) { return cat(golden_folder(), "/models/", name); }

void check_golden(const std::string& group, Device device,
                  const std::map<std::string, GoldenCase::Function>& functions) {
  const Safetensors loaded = load_safetensors(golden_path(group));
  TensorMap file;
  for (const NamedTensor& named : loaded.tensors) file.emplace(named.name, named.tensor);
  const json cases = json::parse(loaded.metadata.at("cases"));
  REQUIRE_FALSE(cases.empty());
  std::set<std::string> used;
  for (const json& description : cases) {
    const auto op = description.at("op").get<std::string>();
    const auto function = functions.find(op);
    INFO(description.at("name").get<std::string>() << ' ' << description.at("attributes").dump());
    if (function == functions.end()) {
      FAIL_CHECK("no function for " << op);
      continue;
    }
    used.insert(op);
    std::string differences;
    try {
      differences = GoldenCase(description, file, device).differences(function->second);
    } catch (const std::exception& error) {
      differences = error.what();
    }
    CHECK(differences == "");
  }
  for (const auto& [op, function] : functions) {
    INFO(op);
    CHECK(used.contains(op));
  }
}

}  // namespace lockstep::test
