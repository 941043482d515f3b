#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/error_function.h"
#include "lockstep/kernels/host/exponentials.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/powers.h"
#include "lockstep/kernels/host/trigonometry.h"

namespace lockstep::kernels::host {
namespace {

template <UnaryOp op, class T>
void loop(const std::array<const void*, 1>& in, void* out, std::int64_t count, const Scalars& scalars) {
  const auto* x = static_cast<const T*>(in[0]);
  auto* y = static_cast<decltype(functors::unary<op>(T{}, T{}, T{}))*>(out);
  [[maybe_unused]] const T a = functors::convert<T>(scalars.a), b = functors::convert<T>(scalars.b);
  if constexpr (std::is_same_v<T, float> && (op == UnaryOp::sin || op == UnaryOp::cos)) {
    sines<op>(x, y, count);
  } else if constexpr (std::is_same_v<T, float> && op == UnaryOp::exp) {
    exponentials(x, y, count);
  } else if constexpr (std::is_same_v<T, float> && op == UnaryOp::log) {
    logarithms(x, y, count);
  } else if constexpr (std::is_same_v<T, float> && op == UnaryOp::erf) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) y[i] = error_function(x[i]);
  } else if constexpr (std::is_same_v<T, float> && op == UnaryOp::log1p) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) y[i] = log1p(x[i]);
  } else if constexpr (std::is_same_v<T, float> && op == UnaryOp::expm1) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) y[i] = expm1(x[i]);
  } else if constexpr (std::is_same_v<T, float> && op == UnaryOp::pow_scalar) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) y[i] = power(x[i], a);
  } else {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) y[i] = functors::unary<op>(x[i], a, b);
  }
}

template <class T, std::size_t... I>
constexpr std::array<Loop<1>, sizeof...(I)> make_loops(std::index_sequence<I...>) {
  const auto entry = [](auto index) -> Loop<1> {
    constexpr auto op = static_cast<UnaryOp>(index());
    if constexpr (functors::supports<T>(op))
      return loop<op, T>;
    else
      return nullptr;
  };
  return {entry(std::integral_constant<std::size_t, I>{})...};
}

}  // namespace

Loop<1> unary_loop(UnaryOp op, DType dtype) {
  return dispatch(dtype, [op]<class T>(Type<T>) {
    using C = functors::Compute<T>;
    static constexpr auto kLoops = make_loops<C>(std::make_index_sequence<kCountOf<UnaryOp>>{});
    return kLoops[static_cast<std::size_t>(op)];
  });
}

void Kernels::enqueue(const Stream& stream, const UnaryArgs& args) {
  UnaryOp op = args.op;
  if (op == UnaryOp::pow_scalar && args.a == 2) op = UnaryOp::square;  // the same value, and vectorised
  const Loop<1> loop = unary_loop(op, args.in.view.dtype);
  if (!loop) [[unlikely]]
    fail_dtype(UnaryArgs::kName, args.in.view.dtype, stream);
  launch(stream, args, [loop](const UnaryArgs& a) {
    elementwise<1>({&a.in.view}, a.out.view, HalfAs::floats, loop, {a.a, a.b});
  });
}

}  // namespace lockstep::kernels::host
