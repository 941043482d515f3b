// Models as a data-parallel step sees them: layers with their parameters, in the order of the forward, and what each
// computes. From the papers' architectures; classes and vocabulary as the published runs had them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::simulate::tests {

struct Layer {
  double flops = 0;  // of the forward, for one sample or token; a product counts once. Only shares are used
  std::vector<std::int64_t> parameters;  // elements of each
};

struct Model {
  std::string name;
  std::vector<Layer> layers;
  std::int64_t parameter_count() const;  // elements
  std::int64_t tensor_count() const;
  double flops() const;
};

Model resnet(int depth);  // 50 or 152
Model vgg16();
Model alexnet();
Model lenet();
Model bert(int layers, int width);
Model transformer_xl();  // base, WikiText-103

}  // namespace lockstep::simulate::tests
