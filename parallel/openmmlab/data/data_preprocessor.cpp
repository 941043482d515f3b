#include "lockstep/parallel/openmmlab/data/data_preprocessor.h"

#include "lockstep/parallel/openmmlab/data/stack_padded.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {

ImgDataPreprocessor::ImgDataPreprocessor(ImgDataPreprocessorOptions options) : options_(std::move(options)) {
  const auto& [mean, std, divisor, pad_value, bgr_to_rgb, rgb_to_bgr] = options_;
  LOCKSTEP_CHECK(!(bgr_to_rgb && rgb_to_bgr),
                 "[ImgDataPreprocessor] expected one conversion of channels, got bgr_to_rgb and rgb_to_bgr");
  LOCKSTEP_CHECK(mean.empty() == std.empty(), "[ImgDataPreprocessor] expected mean and std or neither, got a mean of ",
                 mean.size(), " values and a std of ", std.size());
  for (const auto* list : {&mean, &std})
    LOCKSTEP_CHECK(list->empty() || list->size() == 1 || list->size() == 3,
                   "[ImgDataPreprocessor] expected 1 or 3 values, got ", list->size(), " for the ",
                   list == &mean ? "mean" : "std");
  for (std::size_t c = 0; c < std.size(); ++c)
    LOCKSTEP_CHECK(std[c] != 0, "[ImgDataPreprocessor] expected a std other than zero, got 0 for channel ", c);
  LOCKSTEP_CHECK(divisor >= 1, "[ImgDataPreprocessor] expected a pad_size_divisor of at least 1, got ", divisor);
}

Tensor ImgDataPreprocessor::converted(const Tensor& images) const {
  const bool swaps = options_.bgr_to_rgb || options_.rgb_to_bgr, normalizes = !options_.mean.empty();
  const std::int64_t channels = images.size(-3);
  if (swaps || options_.mean.size() == 3 || options_.std.size() == 3)
    LOCKSTEP_CHECK(channels == 3, "[ImgDataPreprocessor] expected 3 channels ",
                   swaps ? "to convert" : "for a mean or std of 3 values", ", got ", images);
  Tensor whole = images.to(DType::f32);
  if (options_.mean.size() <= 1 && options_.std.size() <= 1) {
    if (swaps) whole = flip(whole, {whole.rank() - 3});
    return normalizes ? (whole - options_.mean[0]) / options_.std[0] : whole;
  }
  // By scalars: tensors of the means would have to be brought to every device.
  std::vector<Tensor> normalized;
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto of = [at = static_cast<std::size_t>(c)](const std::vector<double>& list) {
      return list.size() == 1 ? list[0] : list[at];
    };
    normalized.push_back((whole.narrow(-3, swaps ? channels - 1 - c : c, 1) - of(options_.mean)) / of(options_.std));
  }
  return cat(normalized, -3);
}

Tensor ImgDataPreprocessor::batch(const Tensor& images) const {
  LOCKSTEP_CHECK(images.defined() && images.rank() == 4,
                 "[ImgDataPreprocessor] expected images [n, channels, height, width], got ", images);
  const Tensor whole = converted(images);
  Shape padded = whole.shape();
  const std::int64_t divisor = options_.pad_size_divisor;
  for (const int dim : {2, 3}) padded[dim] = (padded[dim] + divisor - 1) / divisor * divisor;
  return detail::pad_end(whole, padded, options_.pad_value);
}

Tensor ImgDataPreprocessor::of_list(const std::vector<Tensor>& images) const {
  LOCKSTEP_CHECK(!images.empty(), "[ImgDataPreprocessor] expected at least one image, got an empty list");
  std::vector<Tensor> whole;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const Tensor &first = images[0], &image = images[i];
    LOCKSTEP_CHECK(image.defined() && first.rank() == image.rank(),
                   "[ImgDataPreprocessor] expected images of one rank, got ", first, " and, at ", i, ", ", image);
    LOCKSTEP_CHECK(image.rank() == 3, "[ImgDataPreprocessor] expected images [channels, height, width], got ", image,
                   " at ", i);
    LOCKSTEP_CHECK(image.size(0) == first.size(0), "[ImgDataPreprocessor] expected images of as many channels, got ",
                   first, " and, at ", i, ", ", image);
    whole.push_back(converted(image));
  }
  const std::vector<double> values(whole.size(), options_.pad_value);
  return detail::stack_padded(whole, values, 2, options_.pad_size_divisor);
}

Tensor ImgDataPreprocessor::of_container(const DataContainer<Tensor>& images) const {
  LOCKSTEP_CHECK(images.is_batch() && images.group_count() == 1,
                 "[ImgDataPreprocessor] expected a container of one group, as collate and scatter give it, got ",
                 images.is_batch() ? cat(images.group_count(), " groups") : "that of a sample");
  return images.is_stacked() ? batch(images.stacked()) : of_list(images.list());
}

Value ImgDataPreprocessor::preprocess(Value data) const {
  const auto to_batch = [&](Value& inputs) {
    if (inputs.is(Value::Type::tensor)) {
      inputs = batch(inputs.as_tensor());
      return;
    }
    LOCKSTEP_CHECK(inputs.is(Value::Type::list),
                   "[ImgDataPreprocessor] expected a tensor or a list of tensors as inputs, got ",
                   to_string(inputs.type()));
    std::vector<Tensor> images;
    for (const Value& image : inputs.as_list()) {
      LOCKSTEP_CHECK(image.is(Value::Type::tensor),
                     "[ImgDataPreprocessor] expected tensors in the list of inputs, got ", to_string(image.type()),
                     " at ", images.size());
      images.push_back(image.as_tensor());
    }
    inputs = of_list(images);
  };
  if (data.is(Value::Type::map)) {
    (void)data.at("inputs");
    to_batch(data.as_map()["inputs"]);
    data.as_map().try_emplace("data_samples");
  } else if (data.is(Value::Type::list)) {
    (void)data.at(std::size_t{0});
    to_batch(data.as_list()[0]);
  } else {
    detail::fail<InvalidArgument>("[ImgDataPreprocessor] expected a map or a list, got ", to_string(data.type()));
  }
  return data;
}

}  // namespace lockstep
