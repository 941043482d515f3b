#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/powers.h"

namespace lockstep::kernels::host {
namespace {

template <BinaryOp op, class T>
void loop(const std::array<const void*, 2>& in, void* out, std::int64_t count, const Scalars& scalars) {
  using Result = std::conditional_t<functors::is_predicate(op), bool, T>;
  const auto* x = static_cast<const T*>(in[0]);
  const auto* y = static_cast<const T*>(in[1]);
  auto* z = static_cast<Result*>(out);
  [[maybe_unused]] const T alpha = functors::convert<T>(scalars.a);
  if constexpr (std::is_same_v<T, float> && op == BinaryOp::pow) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) z[i] = power(x[i], y[i]);
  } else {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) z[i] = static_cast<Result>(functors::binary<op>(x[i], y[i], alpha));
  }
}

template <class T, std::size_t... I>
constexpr std::array<Loop<2>, sizeof...(I)> make_loops(std::index_sequence<I...>) {
  const auto entry = [](auto index) -> Loop<2> {
    constexpr auto op = static_cast<BinaryOp>(index());
    if constexpr (functors::supports<T>(op))
      return loop<op, T>;
    else
      return nullptr;
  };
  return {entry(std::integral_constant<std::size_t, I>{})...};
}

Loop<2> find_loop(BinaryOp op, DType dtype) {
  return dispatch(dtype, [op]<class T>(Type<T>) {
    using C = functors::Compute<T>;
    static constexpr auto kLoops = make_loops<C>(std::make_index_sequence<kCountOf<BinaryOp>>{});
    return kLoops[static_cast<std::size_t>(op)];
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const BinaryArgs& args) {
  const Loop<2> loop = find_loop(args.op, args.x.view.dtype);
  if (!loop) [[unlikely]]
    fail_dtype(BinaryArgs::kName, args.x.view.dtype, stream);
  launch(stream, args, [loop](const BinaryArgs& a) {
    elementwise<2>({&a.x.view, &a.y.view}, a.out.view, HalfAs::floats, loop, {a.alpha, 0});
  });
}

}  // namespace lockstep::kernels::host
