// What two tensors differ by, and what a module is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/tensor/nn/module.h"
#include "support/catch.h"

namespace support {

// The largest distance between two elements. The shapes must agree.
inline double difference(const lockstep::Tensor& a, const lockstep::Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
  return largest;
}

// "weight[2, 3]", in the order of the module's members.
inline std::vector<std::string> state_names(const lockstep::ModuleBase& module) {
  std::vector<std::string> names;
  for (const lockstep::NamedTensor& entry : module.state_dict())
    names.push_back(entry.name + to_string(entry.tensor.shape()));
  return names;
}

// "weight f32[2, 3] on cpu", in the order of the module's members.
inline std::vector<std::string> state_texts(const lockstep::ModuleBase& module) {
  std::vector<std::string> texts;
  for (const lockstep::NamedTensor& entry : module.state_dict())
    texts.push_back(entry.name + " " + to_string(entry.tensor));
  return texts;
}

}  // namespace support
