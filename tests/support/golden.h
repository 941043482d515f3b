// Reference values that PyTorch computed: tests/golden/<group>.safetensors, made by scripts/make_golden.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::test {

using TensorMap = std::map<std::string, Tensor>;

// One computation: its operands, on the device under test, and its numbers.
class GoldenCase {
 public:
  GoldenCase(const nlohmann::json& description, const TensorMap& file, Device device);

  std::size_t operands() const { return operands_.size(); }
  const Tensor& operator[](std::size_t i) const { return operands_.at(i); }
  bool has(const char* name) const { return attributes_.contains(name); }
  template <class T = double>
  T get(const char* name) const {
    return attributes_.at(name).get<T>();
  }
  template <class T = double>
  T get(const char* name, T otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }
  std::string text(const char* name) const { return get<std::string>(name); }
  std::vector<std::int64_t> integers(const char* name) const { return get<std::vector<std::int64_t>>(name); }
  Size2 size2(const char* name) const {
    const auto both = get<std::vector<int>>(name);
    return {both.at(0), both.at(1)};
  }

  // Gives the module the case's dtype, device, mode and parameters, by name; its gradients and buffers are compared
  // too. It lives as long as the case.
  template <class M>
  const M& load(M module) {
    auto shared = std::make_shared<M>(std::move(module));
    take(shared);
    return *shared;
  }

  // Computes, goes backwards, and says what differs from the reference, a line each.
  using Function = std::function<std::vector<Tensor>(GoldenCase&)>;
  std::string differences(const Function& function);

 private:
  void take(std::shared_ptr<ModuleBase> module);
  Tensor stored(const std::string& key) const;
  void compare(const std::string& what, const Tensor& got, const std::string& key);
  void compare_gradients(const std::vector<Tensor>& outputs);

  const nlohmann::json& description_;
  const nlohmann::json& attributes_;
  const TensorMap& file_;
  Device device_;
  std::vector<Tensor> leaves_, operands_;
  std::shared_ptr<ModuleBase> module_;
  std::string found_;
};

// Of tests/golden/<name>.safetensors.
std::string golden_path(const std::string& name);
// The folder of a model there that transformers saved (scripts/make_golden_models).
std::string golden_model(const std::string& name);

// A model that PyTorch saved, ready for inference.
template <class M>
M model_from_file(const std::string& name, Device device) {
  M model;
  model.to(device);
  load_model(model, golden_path(name));
  model.eval();
  return model;
}

// Checks every case of the group on `device`. Each case must have a function, and each function a case.
void check_golden(const std::string& group, Device device,
                  const std::map<std::string, GoldenCase::Function>& functions);

}  // namespace lockstep::test
