// Which elements a tensor has at the moment: what has been computed of others must be computed anew. Private to the
// library.
#pragma once

#include <cstdint>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

struct Elements {
  Elements() = default;
  explicit Elements(const Tensor& tensor) {  // may be undefined
    if (!tensor.defined()) return;
    storage = tensor.storage();
    version = tensor.version();
    offset = tensor.storage_offset();
    shape = tensor.shape();
    strides = tensor.strides();
  }
  bool operator==(const Elements&) const = default;

  Ref<Storage> storage;  // kept, so that no other can have its address
  std::uint64_t version = 0;
  std::int64_t offset = 0;
  Shape shape;
  Strides strides;
};

}  // namespace lockstep::detail
