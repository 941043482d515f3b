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
#include <string>
#include <vector>

#include "lockstep/tensor/tree.h"

namespace lockstep {

struct DataContainerOptions {
  bool stack = false;        // collate pads the tensors of a group to one size and stacks them
  double padding_value = 0;  // what is added to a smaller tensor
  bool cpu_only = false;     // handed over as it is, never moved, never visited by for_each_tensor
  std::optional<int> pad_dims = 2;  // how many trailing dims may differ: none (shapes agree), 1, 2 or 3
};

template <class T>
class DataContainer {
 public:
  DataContainer() = default;
  // Throws InvalidArgument for pad_dims that is not none, 1, 2 or 3.
  explicit DataContainer(T data, DataContainerOptions options = {});

  const DataContainerOptions& options() const;
  bool stack() const;
  double padding_value() const;
  bool cpu_only() const;
  std::optional<int> pad_dims() const;

  // ---- of a sample. InvalidArgument for a batch.
  const T& data() const;
  std::string datatype() const;            // "f32 tensor", else the name of the type
  std::int64_t size(std::int64_t dim) const;  // of a tensor; InvalidArgument naming the type otherwise
  int dim() const;

  // ---- of a batch. InvalidArgument for a sample, and for a group that is not there.
  bool is_batch() const;
  std::size_t group_count() const;
  const std::vector<T>& list(std::size_t group = 0) const;  // the values of a group; InvalidArgument where stacked
  const Tensor& stacked(std::size_t group = 0) const;       // where stack() holds
};

}  // namespace lockstep
