#include "lockstep/parallel/openmmlab/data/data_sample.h"

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {

std::string to_string(ImageSize size) { return cat(size.height, 'x', size.width); }

// ---- TensorsByName

const Tensor& TensorsByName::at(std::string_view name) const {
  if (const Item* found = find(name)) return found->second;
  std::string names;
  for (const Item& item : items_) names += cat(names.empty() ? "" : ", ", item.first);
  detail::fail<InvalidArgument>("[DataSample] expected a name out of (", names, "), got '", name, "'");
}

void TensorsByName::remove(std::string_view name) {
  std::erase_if(items_, [&](const Item& item) { return item.first == name; });
}

void TensorsByName::put(const char* type, std::string name, Tensor tensor) {
  LOCKSTEP_CHECK(tensor.defined(), "[", type, "] expected a tensor, got an undefined one as '", name, "'");
  if (const Item* found = find(name))
    const_cast<Item*>(found)->second = std::move(tensor);  // NOLINT: this object is not const
  else
    items_.emplace_back(std::move(name), std::move(tensor));
}

const TensorsByName::Item* TensorsByName::other_than(std::string_view name) const {
  for (const Item& item : items_)
    if (item.first != name) return &item;
  return nullptr;
}

const TensorsByName::Item* TensorsByName::find(std::string_view name) const {
  for (const Item& item : items_)
    if (item.first == name) return &item;
  return nullptr;
}

// ---- InstanceData

InstanceData::InstanceData(std::initializer_list<Item> tensors) {
  for (const auto& [name, tensor] : tensors) set(name, tensor);
}

void InstanceData::set(std::string name, Tensor tensor) {
  if (tensor.defined()) {
    LOCKSTEP_CHECK(tensor.rank() > 0, "[InstanceData] expected one entry per object, got '", name, "', ", tensor);
    if (const Item* other = other_than(name))
      LOCKSTEP_CHECK(tensor.size(0) == other->second.size(0), "[InstanceData] expected ", other->second.size(0),
                     " objects, as many as '", other->first, "' (", other->second, ") has, got '", name, "', ", tensor);
  }
  put("InstanceData", std::move(name), std::move(tensor));
}

std::int64_t InstanceData::size() const { return count() == 0 ? 0 : begin()->second.size(0); }

InstanceData InstanceData::operator[](const std::vector<std::int64_t>& indices) const {
  std::vector<std::int64_t> wrapped;
  wrapped.reserve(indices.size());
  for (const std::int64_t index : indices) {
    LOCKSTEP_CHECK(index >= -size() && index < size(), "[InstanceData] expected an index of ", size(), " objects, got ",
                   index);
    wrapped.push_back(index < 0 ? index + size() : index);
  }
  return (*this)[from_data(wrapped, {static_cast<std::int64_t>(wrapped.size())})];
}

InstanceData InstanceData::operator[](const std::vector<bool>& mask) const {
  LOCKSTEP_CHECK(static_cast<std::int64_t>(mask.size()) == size(), "[InstanceData] expected a mask of ", size(),
                 " objects, got one of ", mask.size());
  std::vector<std::int64_t> indices;
  for (std::size_t i = 0; i < mask.size(); ++i)
    if (mask[i]) indices.push_back(static_cast<std::int64_t>(i));
  return (*this)[indices];
}

InstanceData InstanceData::operator[](const Tensor& indices_or_mask) const {
  LOCKSTEP_CHECK(indices_or_mask.rank() == 1, "[InstanceData] expected indices or a mask of one dimension, got ",
                 indices_or_mask);
  if (indices_or_mask.dtype() == DType::boolean) {
    const auto mask = indices_or_mask.to_vector<bool>();
    return (*this)[std::vector<bool>(mask.begin(), mask.end())];
  }
  InstanceData some;
  Tensor indices = indices_or_mask;
  for (const auto& [name, tensor] : *this) {
    indices = indices.to(tensor.device());
    some.set(name, index_select(tensor, 0, indices));
  }
  return some;
}

// ---- PixelData

PixelData::PixelData(std::initializer_list<Item> tensors) {
  for (const auto& [name, tensor] : tensors) set(name, tensor);
}

void PixelData::set(std::string name, Tensor tensor) {
  if (tensor.defined()) {
    LOCKSTEP_CHECK(tensor.rank() >= 2, "[PixelData] expected height and width, got '", name, "', ", tensor);
    if (const Item* other = other_than(name))
      LOCKSTEP_CHECK(tensor.size(-2) == other->second.size(-2) && tensor.size(-1) == other->second.size(-1),
                     "[PixelData] expected the height and width of '", other->first, "' (", other->second, "), got '",
                     name, "', ", tensor);
  }
  put("PixelData", std::move(name), std::move(tensor));
}

ImageSize PixelData::shape() const {
  if (count() == 0) return {};
  return {begin()->second.size(-2), begin()->second.size(-1)};
}

}  // namespace lockstep
