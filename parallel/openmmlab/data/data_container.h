// DataContainer: a field of a sample together with how it is batched and moved. After mmcv's class.
//
//   struct Sample {
//     DataContainer<Tensor> image;          // {.stack = true}: images of different sizes are padded and stacked
//     DataContainer<InstanceData> truth;    // a list per device
//     DataContainer<ImageMeta> meta;        // {.cpu_only = true}: never moved
//     void fields(auto& f) { f(image, truth, meta); }
//   };
//   Sample batch = collate(samples, 2);     // groups of two samples, one for each device
//
// A container holds one value (of a sample) or, once collated, groups of values: one group per device. Scatter gives
// each device its group. The type does not change on the way, so neither does that of a struct with containers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/tensor/data/collate.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {

struct DataContainerOptions {
  bool stack = false;               // collate pads the tensors of a group to one size and stacks them
  double padding_value = 0;         // what is added to a smaller tensor; its dtype must have it, if one of integers
  bool cpu_only = false;            // handed over as it is, never moved, never visited by for_each_tensor
  std::optional<int> pad_dims = 2;  // how many trailing dims may differ: none (shapes agree), 1, 2 or 3
};

namespace detail {

LOCKSTEP_API void check_container(const DataContainerOptions& options);
[[noreturn]] LOCKSTEP_API void fail_not_a_tensor(const char* function, const std::string& datatype);
[[noreturn]] LOCKSTEP_API void fail_kind(const char* function, const char* expected, const std::string& got);
LOCKSTEP_API void check_group(std::size_t group, std::size_t count);
// Of the containers of a batch: are they alike, and of samples? `got` describes a container that is not.
LOCKSTEP_API void check_alike(const DataContainerOptions& first, const DataContainerOptions& other, std::size_t sample);
// The tensors of samples `first`, first + 1, … of a batch as one; `values` are what each is padded with.
LOCKSTEP_API Tensor stack_group(std::span<const Tensor> tensors, std::span<const double> values,
                                std::optional<int> pad_dims, std::size_t first);
// The whole tensor on `device`, as scatter moves it.
LOCKSTEP_API Tensor move_whole(const Tensor& tensor, Device device);

template <class T>
constexpr std::string_view type_name() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::size_t from = text.find("T = ") + 4;
  return text.substr(from, text.find_first_of(";]", from) - from);
}

}  // namespace detail

// Goes through collate, scatter (and so DataParallel) and the loader's transfer. Outside of scatter, for_each_tensor
// finds its tensors, unless it is cpu_only.
template <class T>
class DataContainer {
 public:
  DataContainer() = default;
  // Throws InvalidArgument for pad_dims that is not none, 1, 2 or 3.
  explicit DataContainer(T data, DataContainerOptions options = {})
      : options_((detail::check_container(options), options)), content_(std::in_place_index<0>, std::move(data)) {}

  // A batch as collate makes it, of at least one group: of values, or of the tensors of several samples each.
  static DataContainer of_lists(std::vector<std::vector<T>> groups, DataContainerOptions options = {}) {
    return DataContainer(std::in_place_index<1>, std::move(groups), options);
  }
  static DataContainer of_stacks(std::vector<Tensor> groups, DataContainerOptions options = {.stack = true}) {
    return DataContainer(std::in_place_index<2>, std::move(groups), options);
  }

  const DataContainerOptions& options() const { return options_; }
  bool stack() const { return options_.stack; }
  double padding_value() const { return options_.padding_value; }
  bool cpu_only() const { return options_.cpu_only; }
  std::optional<int> pad_dims() const { return options_.pad_dims; }

  // ---- of a sample. InvalidArgument for a batch.
  const T& data() const {
    const T* found = std::get_if<0>(&content_);
    if (!found) detail::fail_kind("data", "a sample's container", describe());
    return *found;
  }
  // "f32 tensor", "undefined tensor", else the name of the type.
  std::string datatype() const {
    if constexpr (std::is_same_v<T, Tensor>)
      return data().defined() ? cat(data().dtype(), " tensor") : "undefined tensor";
    else
      return std::string(detail::type_name<T>());
  }
  // Of a tensor; InvalidArgument naming the type otherwise.
  const Shape& size() const { return tensor("size").shape(); }
  std::int64_t size(std::int64_t of_dim) const { return tensor("size").size(of_dim); }
  int dim() const { return tensor("dim").rank(); }

  // ---- of a batch. InvalidArgument for a sample, and for a group that is not there.
  bool is_batch() const { return content_.index() != 0; }
  bool is_stacked() const { return content_.index() == 2; }
  std::size_t group_count() const {
    if (!is_batch()) detail::fail_kind("group_count", "a batch's container", describe());
    return is_stacked() ? std::get<2>(content_).size() : std::get<1>(content_).size();
  }
  // The values of a group; InvalidArgument where they are stacked.
  const std::vector<T>& list(std::size_t group = 0) const {
    const auto* groups = std::get_if<1>(&content_);
    if (!groups) detail::fail_kind("list", "a batch of lists", describe());
    detail::check_group(group, groups->size());
    return (*groups)[group];
  }
  // The tensors of a group in one; InvalidArgument where they are in a list.
  const Tensor& stacked(std::size_t group = 0) const {
    const auto* groups = std::get_if<2>(&content_);
    if (!groups) detail::fail_kind("stacked", "a batch of stacked tensors", describe());
    detail::check_group(group, groups->size());
    return (*groups)[group];
  }
  // In all groups; 1 of a sample's container.
  std::int64_t sample_count() const {
    std::int64_t count = is_batch() ? 0 : 1;
    for (const std::int64_t samples : part_samples()) count += samples;
    return count;
  }
  // In each group; empty of a sample's container.
  std::vector<std::int64_t> part_samples() const {
    std::vector<std::int64_t> counts;
    if (const auto* lists = std::get_if<1>(&content_))
      for (const auto& list : *lists) counts.push_back(static_cast<std::int64_t>(list.size()));
    if (const auto* stacks = std::get_if<2>(&content_))
      for (const Tensor& tensors : *stacks) counts.push_back(tensors.size(0));
    return counts;
  }

  // ---- for collate (tensor/data/collate.h), walks (tensor/tree.h) and scatter (parallel/scatter.h)
  // A group for every `samples_per_device` samples. Throws InvalidArgument for samples that do not fit together.
  static DataContainer collate_samples(const std::vector<const DataContainer*>& samples,
                                       std::int64_t samples_per_device);
  template <class F>
  void for_each_tensor(F&& f) {
    if constexpr (requires { f.divided(*this); })
      f.divided(*this);
    else if (!options_.cpu_only)
      std::visit([&](auto& content) { lockstep::for_each_tensor(content, f); }, content_);
  }
  // A sample's container goes to one device as a whole.
  std::size_t piece_count() const { return is_batch() ? group_count() : 1; }
  void take_piece(std::size_t piece, Device device);

 private:
  template <std::size_t I, class Groups>
  DataContainer(std::in_place_index_t<I> index, Groups groups, const DataContainerOptions& options)
      : options_((detail::check_container(options), options)), content_(index, std::move(groups)) {
    if (piece_count() == 0) detail::fail_kind(I == 1 ? "of_lists" : "of_stacks", "at least one group", "none");
  }
  std::string describe() const {
    if (!is_batch()) return cat("one of a sample, of type ", datatype());
    return cat("a batch of ", group_count(), is_stacked() ? " stacked tensors" : " lists");
  }
  const Tensor& tensor(const char* function) const {
    if constexpr (std::is_same_v<T, Tensor>)
      if (data().defined()) return data();
    detail::fail_not_a_tensor(function, is_batch() ? describe() : datatype());
  }

  DataContainerOptions options_;
  std::variant<T, std::vector<std::vector<T>>, std::vector<Tensor>> content_;  // a sample, lists, stacks
};

template <class T>
DataContainer<T> DataContainer<T>::collate_samples(const std::vector<const DataContainer*>& samples,
                                                   std::int64_t samples_per_device) {
  const DataContainerOptions& options = samples[0]->options_;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    (void)samples[i]->data();  // not a batch
    detail::check_alike(options, samples[i]->options_, i);
  }
  const auto step = static_cast<std::size_t>(samples_per_device);
  const auto in_groups = [&](auto&& take) {
    for (std::size_t from = 0; from < samples.size(); from += std::min(step, samples.size() - from))
      take(from, std::span(samples).subspan(from, std::min(step, samples.size() - from)));
  };
  if (options.stack && !options.cpu_only) {
    std::vector<Tensor> groups;
    if constexpr (std::is_same_v<T, Tensor>) {
      in_groups([&](std::size_t from, auto group) {
        std::vector<Tensor> tensors;
        std::vector<double> values;
        for (const DataContainer* sample : group) {
          tensors.push_back(sample->data());
          values.push_back(sample->padding_value());
        }
        groups.push_back(detail::stack_group(tensors, values, options.pad_dims, from));
      });
    } else {
      detail::fail_not_a_tensor("collate with stack = true", samples[0]->datatype());
    }
    return of_stacks(std::move(groups), options);
  }
  std::vector<std::vector<T>> groups;
  in_groups([&](std::size_t, auto group) {
    std::vector<T>& list = groups.emplace_back();
    for (const DataContainer* sample : group) list.push_back(sample->data());
  });
  return of_lists(std::move(groups), options);
}

template <class T>
void DataContainer<T>::take_piece(std::size_t piece, Device device) {
  const auto keep = [piece](auto& groups) {
    auto mine = std::move(groups[piece]);
    groups.clear();
    groups.push_back(std::move(mine));
  };
  if (auto* lists = std::get_if<1>(&content_)) keep(*lists);
  if (auto* stacks = std::get_if<2>(&content_)) keep(*stacks);
  if (device.is_cpu()) return;
  for_each_tensor([&](Tensor& tensor) { tensor = detail::move_whole(tensor, device); });
}

}  // namespace lockstep
