#include "lockstep/parallel/openmmlab/data/data_container.h"

#include "lockstep/parallel/openmmlab/data/stack_padded.h"
#include "lockstep/parallel/scatter_tensor.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/padding.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {
namespace {

std::string flags(const DataContainerOptions& options) {
  const auto yes_or_no = [](bool on) { return on ? "true" : "false"; };
  return cat("{stack = ", yes_or_no(options.stack), ", cpu_only = ", yes_or_no(options.cpu_only),
             ", pad_dims = ", options.pad_dims ? cat(*options.pad_dims) : "none", "}");
}

}  // namespace

void check_container(const DataContainerOptions& options) {
  LOCKSTEP_CHECK(!options.pad_dims || (*options.pad_dims >= 1 && *options.pad_dims <= 3),
                 "[DataContainer] expected pad_dims of none, 1, 2 or 3, got ", *options.pad_dims);
}

void fail_not_a_tensor(const char* function, const std::string& datatype) {
  fail<InvalidArgument>("[DataContainer] expected a tensor for ", function, ", got ", datatype);
}

void fail_kind(const char* function, const char* expected, const std::string& got) {
  fail<InvalidArgument>("[DataContainer] expected ", expected, " for ", function, ", got ", got);
}

void check_group(std::size_t group, std::size_t count) {
  LOCKSTEP_CHECK(group < count, "[DataContainer] expected a group below ", count, ", got ", group);
}

void check_alike(const DataContainerOptions& first, const DataContainerOptions& other, std::size_t sample) {
  LOCKSTEP_CHECK(first.stack == other.stack && first.cpu_only == other.cpu_only && first.pad_dims == other.pad_dims,
                 "[collate] expected containers with the same stack, cpu_only and pad_dims, got ", flags(first),
                 " in sample 0 and ", flags(other), " in sample ", sample, " of the batch");
}

Tensor stack_group(std::span<const Tensor> tensors, std::span<const double> values, std::optional<int> pad_dims,
                   std::size_t first) {
  const int padded = pad_dims.value_or(0);
  const Tensor& model = tensors[0];
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    LOCKSTEP_CHECK(x.defined(), "[collate] expected tensors to stack, got an undefined one in sample ", first + i,
                   " of the batch");
    check_padding("collate", x.dtype(), values[i]);
    LOCKSTEP_CHECK(!pad_dims || x.rank() > padded, "[collate] expected tensors of more than ", padded,
                   " dimensions, the last ", padded, " of which are padded, got ", x, " in sample ", first + i,
                   " of the batch");
    bool fits = x.dtype() == model.dtype() && x.device() == model.device() && x.rank() == model.rank();
    for (int dim = 0; fits && dim < x.rank() - padded; ++dim) fits = x.shape()[dim] == model.shape()[dim];
    if (fits) continue;
    fail<InvalidArgument>("[collate] expected tensors of one dtype and device and one shape",
                          pad_dims ? cat(" but for the last ", padded, " dimensions") : "", ", got ", model,
                          " in sample ", first, " and ", x, " in sample ", first + i, " of the batch");
  }
  return stack_padded(tensors, values, padded);
}

Tensor move_whole(const Tensor& tensor, Device device) {
  if (tensor.rank() > 0) {
    const std::int64_t size = tensor.size(0);
    return scatter_tensor(tensor, {&device, 1}, {&size, 1}, 0)[0];
  }
  if (tensor.device() != device) moved_bytes() += tensor.bytes();
  return tensor.to(device);
}

}  // namespace lockstep::detail
