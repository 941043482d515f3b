#include "lockstep/tensor/ops/support.h"

#include <cmath>

#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

DType promote_types(DType a, DType b) {
  if (a == b) return a;
  // Position in the order of the header, by dtype: f32, f64, f16, bf16, i32, i64, u8, bool, i8.
  constexpr int kOrder[kDTypeCount] = {5, 6, 4, 4, 2, 3, 1, 0, 1};
  const int order_a = kOrder[static_cast<int>(a)], order_b = kOrder[static_cast<int>(b)];
  if (order_a == order_b) return is_floating(a) ? DType::f32 : DType::i32;  // that holds the values of both
  return order_a > order_b ? a : b;
}

DType result_type(const Tensor& a, const Tensor& b) {
  detail::check_defined("result_type", a);
  detail::check_defined("result_type", b);
  if (a.dtype() == b.dtype()) return a.dtype();
  if ((a.rank() == 0) == (b.rank() == 0)) return promote_types(a.dtype(), b.dtype());
  const auto kind = [](DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::boolean ? 0 : 1; };
  const DType of_single = a.rank() == 0 ? a.dtype() : b.dtype(), of_many = a.rank() == 0 ? b.dtype() : a.dtype();
  return kind(of_single) > kind(of_many) ? of_single : of_many;
}

namespace detail {

Tensor fresh(const Shape& shape, DType dtype, Device device, MemoryFormat format) {
  const std::int64_t count = element_count(shape);
  std::size_t bytes;
  LOCKSTEP_CHECK(!__builtin_mul_overflow(static_cast<std::size_t>(count), size_of(dtype), &bytes),
                 "[empty] expected fewer than 2^64 bytes, got ", dtype, shape);
  Ref<Storage> storage = Storage::allocate(device, bytes);
  Ref<TensorImpl> impl(new TensorImpl);
  impl->storage = std::move(storage);
  impl->count = count;
  impl->shape = shape;
  impl->strides = format_strides(shape, format);
  impl->dtype = dtype;
  if (format != MemoryFormat::contiguous) impl->contiguous = is_contiguous(shape, impl->strides);
  return Tensor(std::move(impl));
}

Tensor fresh_like(const Tensor& like, DType dtype) {
  if (!like.contiguous_layout() || dtype != like.dtype())
    return fresh(like.shape(), dtype, like.device(), like.memory_format());
  Ref<Storage> storage = Storage::allocate(like.device(), like.bytes());
  Ref<TensorImpl> impl(new TensorImpl);
  impl->storage = std::move(storage);
  impl->count = like.count();
  impl->shape = like.shape();
  impl->strides = like.strides();
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

Tensor fresh_scalar(double value, DType dtype, Device device) {
  Tensor scalar = fresh({}, dtype, device);
  fill(scalar, value);
  return scalar;
}

Tensor fresh_zeros(const Shape& shape, DType dtype, Device device) {
  Tensor zeros = fresh(shape, dtype, device);
  fill(zeros, 0);
  return zeros;
}

Tensor alias(const Tensor& base, const Shape& shape, const Strides& strides, std::int64_t offset) {
  Ref<TensorImpl> impl(new TensorImpl);
  impl->storage = base.storage();
  impl->offset = offset;
  impl->count = element_count(shape);
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = base.dtype();
  impl->contiguous = is_contiguous(shape, strides);
  impl->is_view = base.identity()->is_view || base.requires_grad();
  return Tensor(std::move(impl));
}

MemoryFormat common_format(const Shape& shape, std::initializer_list<const Tensor*> operands) {
  if (shape.rank() != 4) return MemoryFormat::contiguous;
  MemoryFormat format = MemoryFormat::contiguous;
  for (const Tensor* const x : operands) {
    if (!x->defined() || x->shape() != shape) continue;
    bool repeats = false;
    for (int d = 0; d < 4; ++d) repeats |= x->strides()[d] == 0 && shape[d] > 1;
    if (repeats) continue;
    if (x->memory_format() == MemoryFormat::channels_last)
      format = MemoryFormat::channels_last;
    else if (!x->contiguous_layout(MemoryFormat::channels_last))
      return MemoryFormat::contiguous;
  }
  return format;
}

MemoryFormat kernel_format(const Tensor& like, MemoryFormat format) {
  const bool takes = kernels::table(like.device().type()).takes_channels_last && like.dtype() != DType::f64;
  return takes ? format : MemoryFormat::contiguous;
}

View view_as(const Tensor& tensor, const Shape& shape) {
  View view = tensor.view();
  if (view.shape == shape) return view;
  view.strides = broadcast_strides(view.shape, view.strides, shape);
  view.shape = shape;
  return view;
}

View view_reshaped(const Tensor& tensor, const Shape& shape) {
  View view = tensor.view();
  view.shape = shape;
  view.strides = contiguous_strides(shape);
  return view;
}

Shape folded(const Shape& shape, int dim) {
  Shape result{1, shape.empty() ? 1 : shape[dim], 1};
  for (int i = 0; i < shape.rank(); ++i)
    if (i != dim) result[i < dim ? 0 : 2] *= shape[i];
  return result;
}

void fill(const Tensor& tensor, double value) {
  if (tensor.count() == 0) return;
  value = wrapped(value, tensor.dtype());
  constexpr double kTwoTo63 = 0x1p63;
  const bool fits = value >= -kTwoTo63 && value < kTwoTo63;
  launch(tensor.device(), FillArgs{tensor.out(), value, fits ? static_cast<std::int64_t>(value) : 0});
}

void copy_elements(const Tensor& destination, const Tensor& source) {
  if (destination.count() == 0) return;
  launch(destination.device(), CastArgs{In{view_as(source, destination.shape())}, destination.out()});
}

void fail_undefined(const char* op) {
  lockstep::detail::fail<InvalidArgument>("[", op, "] expected a tensor, got an undefined one");
}

void fail_devices(const char* op, const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) fail<InvalidArgument>("[", op, "] expected two tensors, got ", a, " and ", b);
  fail<InvalidArgument>("[", op, "] expected tensors on one device, got ", a, " and ", b,
                        "; move one of them with .to(device)");
}

void check_floating_alike(const char* op, const Tensor& a, const Tensor& b) {
  check_same_device(op, a, b);
  LOCKSTEP_CHECK(a.dtype() == b.dtype() && is_floating(a.dtype()), "[", op,
                 "] expected tensors of one floating dtype, got ", a, " and ", b);
}

void check_floating(const char* op, const Tensor& tensor) {
  check_defined(op, tensor);
  LOCKSTEP_CHECK(is_floating(tensor.dtype()), "[", op, "] expected a floating dtype, got ", tensor);
}

Shape broadcast(const char* op, const Tensor& a, const Tensor& b) {
  const Shape &x = a.shape(), &y = b.shape();
  if (x == y) return x;
  const Shape& longer = x.rank() >= y.rank() ? x : y;
  const Shape& shorter = x.rank() >= y.rank() ? y : x;
  Shape result = longer;
  const int missing = longer.rank() - shorter.rank();
  for (int i = 0; i < shorter.rank(); ++i) {
    std::int64_t& size = result[missing + i];
    if (size == shorter[i] || shorter[i] == 1) continue;
    LOCKSTEP_CHECK(size == 1, "[", op, "] expected shapes that broadcast together, got ", a, " and ", b);
    size = shorter[i];
  }
  return result;
}

Tensor to_indices(const char* op, const Tensor& indices) {
  check_defined(op, indices);
  LOCKSTEP_CHECK(!is_floating(indices.dtype()) && indices.dtype() != DType::boolean, "[", op,
                 "] expected indices of an integer dtype, got ", indices);
  return indices.to(DType::i64);
}

double wrapped(double number, DType dtype) {
  if (is_floating(dtype) || dtype == DType::boolean || !std::isfinite(number)) return number;
  const double whole = std::trunc(number);
  const double values = size_of(dtype) == 1 ? 0x1p8 : size_of(dtype) == 4 ? 0x1p32 : 0x1p64;
  const double low = dtype == DType::u8 ? 0 : -values / 2;
  if (whole >= low && whole < low + values) return whole;
  const double rest = std::fmod(whole, values);  // exact, and so are the sums
  return rest < low ? rest + values : rest >= low + values ? rest - values : rest;
}

int normalize_dim_of(const char* op, std::int64_t dim, const Tensor& tensor) {
  check_defined(op, tensor);
  return normalize_dim(op, dim, tensor.rank() == 0 ? 1 : tensor.rank());
}

DType dtype_with(const Tensor& tensor, double number) {
  const DType dtype = tensor.dtype();
  if (is_floating(dtype)) return dtype;
  if (number != std::floor(number)) return DefaultDType::get();  // also NaN
  if (std::isinf(number)) return DefaultDType::get();
  return dtype == DType::boolean ? DType::i64 : dtype;
}

DType dtype_for(double number, DType dtype) {
  if (dtype != DType::f16 && dtype != DType::bf16) return dtype;
  const auto single = static_cast<float>(number);
  const float rounded = dtype == DType::f16 ? float{Half(single)} : float{BFloat16(single)};
  return rounded == number || std::isnan(number) ? dtype : DType::f32;
}

}  // namespace detail
}  // namespace lockstep
