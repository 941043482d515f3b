// What operations are made of: fresh results, checks, type promotion, launches, and elementwise operations in one line.
// For the library's own operations and for those of extensions; the recipes of CONTRIBUTING.md show how.
#pragma once

#include <initializer_list>

#include "lockstep/kernels/api.h"
#include "lockstep/tensor/autograd/record.h"

namespace lockstep::detail {

// ---- results: without gaps, not initialised, for work on the device's current stream

LOCKSTEP_API Tensor fresh(const Shape& shape, DType dtype, Device device,
                          MemoryFormat format = MemoryFormat::contiguous);
// In the memory format of `like`.
LOCKSTEP_API Tensor fresh_like(const Tensor& like, DType dtype);
inline Tensor fresh_like(const Tensor& like) { return fresh_like(like, like.dtype()); }
// A tensor of rank 0 with this value in it, wrapped if need be.
LOCKSTEP_API Tensor fresh_scalar(double value, DType dtype, Device device);
LOCKSTEP_API Tensor fresh_zeros(const Shape& shape, DType dtype, Device device);
// The same elements under another shape, strides and offset (elements); outside the graph until a node is recorded.
LOCKSTEP_API Tensor alias(const Tensor& base, const Shape& shape, const Strides& strides, std::int64_t offset);

// ---- memory formats

// Of the result of an elementwise operation: channels_last where an operand of the whole `shape` is, and the elements
// of all such operands are in that order. Operands that are broadcast or undefined have no say.
LOCKSTEP_API MemoryFormat common_format(const Shape& shape, std::initializer_list<const Tensor*> operands);
// In which an image kernel computes what is wanted in `format`, for images like `like` (their device and dtype). What
// it gives in another is converted by to(format).
LOCKSTEP_API MemoryFormat kernel_format(const Tensor& like, MemoryFormat format);
// For gradients: `x` in `format`, and x itself where that is its format, with gaps or without.
inline Tensor in_format(const Tensor& x, MemoryFormat format) { return x.memory_format() == format ? x : x.to(format); }
inline Tensor contiguous_or_undefined(const Tensor& x) { return x.defined() ? x.contiguous() : x; }

// ---- launches

// On the current stream of `device`.
template <class Args>
void launch(Device device, const Args& args) {
  kernels::launch(current_stream(device), args);
}
// What a kernel sees of `tensor` read as `shape`, which it must broadcast to.
LOCKSTEP_API View view_as(const Tensor& tensor, const Shape& shape);
// What a kernel sees of a contiguous `tensor` under another shape of as many elements.
LOCKSTEP_API View view_reshaped(const Tensor& tensor, const Shape& shape);
// `shape` as [outer, size, inner] with `dim` in the middle; rank 0 is one element.
LOCKSTEP_API Shape folded(const Shape& shape, int dim);
// The value wraps into an integer dtype.
LOCKSTEP_API void fill(const Tensor& tensor, double value);
// Copies the elements of `source`, broadcast and converted, into `destination` on the same device.
LOCKSTEP_API void copy_elements(const Tensor& destination, const Tensor& source);

// ---- graphs

// Whether an operation on these is recorded; each is defined.
inline bool wants_graph(std::initializer_list<const Tensor*> inputs) {
  if (!GradMode::enabled()) return false;
  for (const Tensor* input : inputs)
    if (input->requires_grad()) return true;
  return false;
}

// ---- checks. All of them throw InvalidArgument that names `op` and the tensors.

[[noreturn]] LOCKSTEP_API void fail_undefined(const char* op);
[[noreturn]] LOCKSTEP_API void fail_devices(const char* op, const Tensor& a, const Tensor& b);
inline void check_defined(const char* op, const Tensor& tensor) {
  if (!tensor.defined()) [[unlikely]]
    fail_undefined(op);
}
inline void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.device() != b.device()) [[unlikely]]
    fail_devices(op, a, b);
}
// Same device, and the same floating dtype.
LOCKSTEP_API void check_floating_alike(const char* op, const Tensor& a, const Tensor& b);
// A floating dtype.
LOCKSTEP_API void check_floating(const char* op, const Tensor& tensor);
// As normalize_dim, but a tensor of rank 0 counts as one of rank 1: its only dimension is 0, or -1.
LOCKSTEP_API int normalize_dim_of(const char* op, std::int64_t dim, const Tensor& tensor);
// The shape that both broadcast to.
LOCKSTEP_API Shape broadcast(const char* op, const Tensor& a, const Tensor& b);
// Indices as the kernels want them: i64. Throws for floating dtypes and bool.
LOCKSTEP_API Tensor to_indices(const char* op, const Tensor& indices);

// ---- dtypes

// The number that `number` is in an integer dtype: what is behind the point goes, what does not fit wraps. Infinities,
// NaN and numbers for other dtypes stay.
LOCKSTEP_API double wrapped(double number, DType dtype);
// The dtype in which `tensor` meets a C++ number.
LOCKSTEP_API DType dtype_with(const Tensor& tensor, double number);
// The dtype in which to compute with the number where the result is of `dtype`: f32 where that is a 16-bit one that
// does not have the number.
LOCKSTEP_API DType dtype_for(double number, DType dtype);
// The dtype of a true division or a function such as exp: the tensor's, or DefaultDType for integers.
inline DType floating_dtype(DType dtype) { return is_floating(dtype) ? dtype : DefaultDType::get(); }

// ---- elementwise operations of one tensor

// What a rule saves for its derivative.
enum class Save : std::uint8_t { nothing, input, output };

struct UnaryOperands {
  const Tensor& g;      // the gradient of the result
  const Tensor& saved;  // the operand or the result, as UnaryRule::save says
  double a, b;
};

// An operation of the kernel table with its derivative. Rules have static storage duration.
struct UnaryRule {
  const char* name;
  UnaryOp op;
  Save save;  // what `derivative` reads
  // The gradient of the operand, made of differentiable operations; null where it is zero everywhere.
  Tensor (*derivative)(const UnaryOperands& of);
  bool floating = true;  // integers become DefaultDType first
};
LOCKSTEP_API Tensor apply(const UnaryRule& rule, const Tensor& x, double a = 0, double b = 0);

// ---- elementwise operations of two tensors

struct BinaryOperands {
  const Tensor& g;  // the gradient of the result
  const Tensor &a, &b, &y;
  double alpha;
};
enum Uses : std::uint8_t { uses_nothing = 0, uses_a = 1, uses_b = 2, uses_y = 4 };

struct BinaryDerivative {
  std::uint8_t uses;  // what it reads
  // The gradient of one operand, in the broadcast shape, made of differentiable operations.
  Tensor (*derivative)(const BinaryOperands& of);
};
struct BinaryRule {
  const char* name;
  BinaryOp op;
  BinaryDerivative for_a, for_b;
};
// Promotes, broadcasts, computes, records.
LOCKSTEP_API Tensor apply(const BinaryRule& rule, const Tensor& a, const Tensor& b, double alpha = 1);
// The derivative of relu in one kernel: gradient where `saved`, the operand or the result, is positive, else 0.
LOCKSTEP_API Tensor relu_backward(const Tensor& gradient, const Tensor& saved);
// By an operation of its own.
LOCKSTEP_API Tensor activated(const Tensor& x, Activation activation);
// Broadcasts and computes operands of one dtype, without a graph.
LOCKSTEP_API Tensor elementwise(const char* name, BinaryOp op, const Tensor& a, const Tensor& b, double alpha = 1);

}  // namespace lockstep::detail
