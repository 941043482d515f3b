// DataSample: what is known and what is predicted about one sample. After mmengine's data elements of these names.
//
//   DataSample sample;
//   sample.metainfo.img_path = path;
//   sample.gt_instances = InstanceData{{"bboxes", boxes}, {"labels", labels}};     // [n, 4], [n]
//   const InstanceData sure = (*sample.pred_instances)[sample.pred_instances->scores() > 0.5];
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

struct ImageSize {
  std::int64_t height = 0, width = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};
LOCKSTEP_API std::string to_string(ImageSize size);  // "480x640": height, then width

// Where an image comes from and what was done to it on the way into the batch.
struct ImageMeta {
  std::string img_path;
  std::int64_t img_id = -1;
  ImageSize ori_shape;          // as it was read
  ImageSize img_shape;          // after resizing
  ImageSize pad_shape;          // with its padding
  ImageSize batch_input_shape;  // of the batch it is in
  double scale_factor_width = 1, scale_factor_height = 1;
  bool flip = false;
  std::string flip_direction;  // "horizontal", "vertical", "diagonal"; empty where flip is false
  friend bool operator==(const ImageMeta&, const ImageMeta&) = default;
};

// Tensors by name, in the order in which they were set. What their shapes have in common is a derived class's matter.
class LOCKSTEP_API TensorsByName {
 public:
  using Item = std::pair<std::string, Tensor>;

  // Throws InvalidArgument that lists the names there are.
  const Tensor& at(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  void remove(std::string_view name);  // nothing where there is none
  std::size_t count() const { return items_.size(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

  // See tree.h.
  template <class F>
  void for_each_tensor(F&& f) {
    for (Item& item : items_) f(item.second);
  }

 protected:
  TensorsByName() = default;
  // Replaces or adds; throws InvalidArgument, naming `type`, for an undefined tensor.
  void put(const char* type, std::string name, Tensor tensor);
  // The first tensor that is not `name`; null where there is none.
  const Item* other_than(std::string_view name) const;

 private:
  const Item* find(std::string_view name) const;
  std::vector<Item> items_;
};

// What belongs to each of n objects in an image: every tensor has n as its first size.
class LOCKSTEP_API InstanceData : public TensorsByName {
 public:
  InstanceData() = default;
  InstanceData(std::initializer_list<Item> tensors);

  // Throws InvalidArgument, naming both tensors, for another first size than the rest has.
  void set(std::string name, Tensor tensor);
  std::int64_t size() const;  // objects

  // The usual names; as at().
  const Tensor& bboxes() const { return at("bboxes"); }
  const Tensor& labels() const { return at("labels"); }
  const Tensor& scores() const { return at("scores"); }
  const Tensor& masks() const { return at("masks"); }

  // Some of the objects, in the order of the indices (negative ones count from the end) or where the mask is true.
  // Throw InvalidArgument for an index out of range and for a mask of another length.
  InstanceData operator[](const std::vector<std::int64_t>& indices) const;
  InstanceData operator[](const std::vector<bool>& mask) const;
  // One dimension, of integers, or of bools: then it blocks until the mask is known.
  InstanceData operator[](const Tensor& indices_or_mask) const;
};

// What belongs to each pixel of an image: every tensor has height and width as its last two sizes.
class LOCKSTEP_API PixelData : public TensorsByName {
 public:
  PixelData() = default;
  PixelData(std::initializer_list<Item> tensors);

  // Throws InvalidArgument, naming both tensors, for other last sizes than the rest has, and for less than two.
  void set(std::string name, Tensor tensor);
  ImageSize shape() const;  // 0x0 without tensors

  const Tensor& sem_seg() const { return at("sem_seg"); }
};

// What belongs to a whole image.
struct LabelData {
  Tensor label;  // class indices
  Tensor score;  // [classes]
  void fields(auto& f) { f(label, score); }
};

// Goes through collate in a DataContainer; scatter, preprocessors and hooks see its tensors.
struct DataSample {
  ImageMeta metainfo;
  std::optional<InstanceData> gt_instances, pred_instances;
  std::optional<PixelData> gt_sem_seg, pred_sem_seg;
  std::optional<LabelData> gt_label, pred_label;
  void fields(auto& f) { f(metainfo, gt_instances, pred_instances, gt_sem_seg, pred_sem_seg, gt_label, pred_label); }
};

}  // namespace lockstep
