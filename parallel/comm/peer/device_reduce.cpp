#include "lockstep/parallel/comm/peer/device_reduce.h"

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/memory/alignment.h"

namespace lockstep::detail {
namespace {

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

BinaryOp op_of(RedOp reduction, DType dtype) {
  const bool logical = dtype == DType::boolean;
  switch (reduction) {
    case RedOp::max:
      return logical ? BinaryOp::logical_or : BinaryOp::maximum;
    case RedOp::min:
      return logical ? BinaryOp::logical_and : BinaryOp::minimum;
    case RedOp::product:
      return logical ? BinaryOp::logical_and : BinaryOp::mul;
    default:
      return logical ? BinaryOp::logical_or : BinaryOp::add;
  }
}

// The work of one call on one stream.
class Combiner {
 public:
  Combiner(const Stream& stream, DType dtype, std::int64_t count) : stream_(stream), dtype_(dtype), count_(count) {}

  View view(const void* data, std::int64_t stride = 1) const {
    return {const_cast<void*>(data), Shape{count_}, Strides{stride}, dtype_, stream_.device(), true};
  }
  void binary(BinaryOp op, const View& x, const View& y, const View& out) const {
    kernels::launch(stream_, BinaryArgs{.op = op, .x = {x}, .y = {y}, .out = {out}});
  }
  void cast(const View& from, const View& to) const { kernels::launch(stream_, CastArgs{.in = {from}, .out = {to}}); }
  // x /= number, which `one` has room for.
  void divide(const View& x, double number, void* one) const {
    View divisor = view(one);
    divisor.shape = Shape{1};
    kernels::launch(stream_, FillArgs{.out = {divisor}, .value = number});
    binary(BinaryOp::div, x, view(one, 0), x);
  }

 private:
  Stream stream_;
  DType dtype_;
  std::int64_t count_;
};

}  // namespace

// The sum so far, a piece on its way into it, and a number to divide by.
std::size_t combine_scratch_bytes(DType dtype, std::int64_t count) {
  const std::size_t bytes =
      aligned_bytes(static_cast<std::size_t>(count) * size_of(is_half(dtype) ? DType::f32 : dtype));
  return (is_half(dtype) ? 2 * bytes : bytes) + kMemoryAlignment;
}

void combine(const Stream& stream, RedOp reduction, DType dtype, std::int64_t count,
             std::span<const void* const> pieces, void* out, void* scratch) {
  if (count == 0) return;
  const bool half = is_half(dtype);
  const Combiner given(stream, dtype, count), wide(stream, half ? DType::f32 : dtype, count);
  const BinaryOp op = op_of(reduction, dtype);
  auto* const sum_at = static_cast<std::byte*>(scratch) + kMemoryAlignment;
  const View sum = wide.view(sum_at), result = given.view(out);
  const std::size_t last = pieces.size() - 1;
  const double ranks = static_cast<double>(pieces.size());

  if (half) {
    const View addend = wide.view(sum_at + aligned_bytes(static_cast<std::size_t>(count) * sizeof(float)));
    given.cast(given.view(pieces[0]), sum);
    for (std::size_t r = 1; r <= last; ++r) {
      given.cast(given.view(pieces[r]), addend);
      wide.binary(op, sum, addend, sum);
    }
    if (reduction == RedOp::avg) wide.divide(sum, ranks, scratch);
    given.cast(sum, result);
    return;
  }
  if (last == 0) {
    if (pieces[0] != out) given.cast(given.view(pieces[0]), result);
    if (reduction == RedOp::avg) given.divide(result, ranks, scratch);
    return;
  }
  // The result is written where it belongs by the last kernel, unless that would be its second operand.
  const View end = out == pieces[last] ? sum : result;
  View so_far = given.view(pieces[0]);
  for (std::size_t r = 1; r <= last; ++r) {
    const View target = r == last ? end : sum;
    given.binary(op, so_far, given.view(pieces[r]), target);
    so_far = target;
  }
  if (reduction == RedOp::avg) given.divide(end, ranks, scratch);
  if (end.data != out) given.cast(end, result);
}

}  // namespace lockstep::detail
