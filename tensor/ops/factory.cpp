#include "lockstep/tensor/ops/factory.h"

#include <cmath>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

DType dtype_of(const TensorOptions& options) { return options.dtype.value_or(DefaultDType::get()); }

Tensor finished(Tensor tensor, const TensorOptions& options) {
  if (options.requires_grad) tensor.set_requires_grad();
  return tensor;
}

// Before anything is allocated.
void check(const char* op, DType dtype, const TensorOptions& options) {
  ordinal(options.device);
  LOCKSTEP_CHECK(!options.requires_grad || is_floating(dtype), "[", op,
                 "] expected a floating dtype for a tensor that requires a gradient, got ", dtype);
}

Tensor filled(const char* op, const Shape& shape, double value, const TensorOptions& options) {
  check(op, dtype_of(options), options);
  Tensor tensor = detail::fresh(shape, dtype_of(options), options.device);
  detail::fill(tensor, value);
  return finished(std::move(tensor), options);
}

}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options) {
  check("empty", dtype_of(options), options);
  return finished(detail::fresh(shape, dtype_of(options), options.device), options);
}
Tensor zeros(const Shape& shape, const TensorOptions& options) { return filled("zeros", shape, 0, options); }
Tensor ones(const Shape& shape, const TensorOptions& options) { return filled("ones", shape, 1, options); }
Tensor full(const Shape& shape, double value, const TensorOptions& options) {
  return filled("full", shape, value, options);
}

Tensor eye(std::int64_t size, const TensorOptions& options) {
  Tensor matrix = filled("eye", {size, size}, 0, {.dtype = options.dtype, .device = options.device});
  // The diagonal is every (size + 1)-th element.
  if (size > 0) detail::fill(detail::alias(matrix, {size}, {size + 1}, 0), 1);
  return finished(std::move(matrix), options);
}

Tensor empty_like(const Tensor& like, std::optional<DType> dtype) {
  detail::check_defined("empty_like", like);
  return detail::fresh_like(like, dtype.value_or(like.dtype()));
}
Tensor full_like(const Tensor& like, double value, std::optional<DType> dtype) {
  Tensor tensor = empty_like(like, dtype);
  detail::fill(tensor, value);
  return tensor;
}
Tensor zeros_like(const Tensor& like, std::optional<DType> dtype) { return full_like(like, 0, dtype); }
Tensor ones_like(const Tensor& like, std::optional<DType> dtype) { return full_like(like, 1, dtype); }

Tensor linspace(double start, double end, std::int64_t steps, const TensorOptions& options) {
  LOCKSTEP_CHECK(steps >= 0 && is_floating(dtype_of(options)),
                 "[linspace] expected a count of at least 0 and a floating dtype, got ", steps, " and ",
                 dtype_of(options));
  check("linspace", dtype_of(options), options);
  Tensor tensor = detail::fresh({steps}, dtype_of(options), options.device);
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  if (steps > 0) detail::launch(options.device, ArangeArgs{tensor.out(), start, step});
  if (steps > 1) detail::fill(tensor.select(0, -1), end);  // free of rounding
  return finished(std::move(tensor), options);
}

namespace detail {

Tensor arange(double start, double end, double step, DType dtype, const TensorOptions& options) {
  const double steps = std::ceil((end - start) / step);
  LOCKSTEP_CHECK(step != 0 && steps < 0x1p62 && steps > -0x1p62, "[arange] expected a range of finite length, got ",
                 start, " to ", end, " in steps of ", step);
  dtype = options.dtype.value_or(dtype);
  check("arange", dtype, options);
  Tensor tensor = fresh({steps > 0 ? static_cast<std::int64_t>(steps) : 0}, dtype, options.device);
  if (tensor.count() > 0) launch(options.device, ArangeArgs{tensor.out(), start, step});
  return finished(std::move(tensor), options);
}

Tensor from_memory(const void* data, std::size_t count, DType from, const Shape& shape, const TensorOptions& options) {
  LOCKSTEP_CHECK(static_cast<std::size_t>(element_count(shape)) == count, "[from_data] expected ", element_count(shape),
                 " elements for the shape ", shape, ", got ", count);
  const DType dtype = options.dtype.value_or(from);
  check("from_data", dtype, options);
  Tensor tensor = fresh(shape, from, options.device);
  // A copy out of cpu memory orders later work of the host, so the data may go away when this returns.
  copy_bytes({.destination = const_cast<void*>(tensor.data()),
              .destination_device = options.device,
              .source = data,
              .source_device = Device::cpu(),
              .bytes = tensor.bytes()},
             current_stream(Device::cpu()), current_stream(options.device));
  return finished(tensor.to(dtype), options);
}

}  // namespace detail
}  // namespace lockstep
