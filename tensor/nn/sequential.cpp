#include "lockstep/tensor/nn/sequential.h"

#include <string>

namespace lockstep {

Sequential::Sequential(const Sequential& other) : Module<Sequential>(other) {
  items_.reserve(other.items_.size());
  for (const auto& item : other.items_) items_.push_back(item->clone());
}

Sequential& Sequential::operator=(Sequential other) noexcept {
  Module<Sequential>::operator=(other);
  items_.swap(other.items_);
  return *this;
}

Tensor Sequential::forward(const Tensor& x) const {
  Tensor y = x;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i + 1 < items_.size() && items_[i + 1]->is_relu() && !items_[i + 1]->module().has_hooks())
      if (const std::optional<Tensor> rectified = items_[i]->call_with_relu(y)) {
        y = *rectified;
        ++i;
        continue;
      }
    y = items_[i]->call(y);
  }
  return y;
}

void Sequential::members(Members& m) {
  for (std::size_t i = 0; i < items_.size(); ++i) m(std::to_string(i), items_[i]->module());
}

Sequential::Holder& Sequential::holder(std::size_t index) const {
  LOCKSTEP_CHECK(index < items_.size(), "[Sequential] expected an index below ", items_.size(), ", got ", index);
  return *items_[index];
}

void Sequential::fail_type(std::size_t index) {
  throw InvalidArgument(cat("[Sequential] expected another type of module at index ", index));
}

}  // namespace lockstep
