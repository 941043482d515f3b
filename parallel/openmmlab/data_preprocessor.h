// What happens to a batch between the loader and the model. After mmengine's data preprocessors.
#pragma once

#include <utility>

#include "lockstep/tensor/tree.h"

namespace lockstep {

// Casts a batch to the device of the model: every tensor in it, at any depth; the rest stays as it is.
class BaseDataPreprocessor {
 public:
  template <class Data>
  Data operator()(Data data, Device device, [[maybe_unused]] bool training) const {
    for_each_tensor(data, [&](Tensor& tensor) { tensor = tensor.to(device); });
    return data;
  }
};

}  // namespace lockstep
