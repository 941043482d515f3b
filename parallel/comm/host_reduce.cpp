#include "lockstep/parallel/comm/host_reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

// Elements that are worked on at a time: what is computed is still in the first cache when it is used again.
constexpr std::int64_t kBlock = 2048;

// What an element is while it is reduced: integers without a sign wrap.
template <class T>
struct Arithmetic {
  using type = T;
};
template <>
struct Arithmetic<Half> {
  using type = float;
};
template <>
struct Arithmetic<BFloat16> {
  using type = float;
};
template <class T>
using Wide = typename Arithmetic<T>::type;

template <class W>
W wrap(W a, W b, auto op) {
  if constexpr (std::is_integral_v<W> && sizeof(W) >= 4) {
    using U = std::make_unsigned_t<W>;
    return static_cast<W>(op(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return static_cast<W>(op(a, b));
  }
}

struct Add {
  template <class W>
  W operator()(W a, W b) const {
    return wrap(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Multiply {
  template <class W>
  W operator()(W a, W b) const {
    return wrap(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Max {
  template <class W>
  W operator()(W a, W b) const {
    return functors::larger(b, a);  // of equal ones the first
  }
};
struct Min {
  template <class W>
  W operator()(W a, W b) const {
    return functors::smaller(b, a);
  }
};
// Of bools, which are bytes here: any but 0 is true.
struct Or {
  std::uint8_t operator()(std::uint8_t a, std::uint8_t b) const { return (a | b) != 0; }
};
struct And {
  std::uint8_t operator()(std::uint8_t a, std::uint8_t b) const { return (a != 0) & (b != 0); }
};

// The loops' iterations do not depend on each other: where an output is an input, it is so element by element.
template <class T, class F>
void map(const T* from, T* to, std::int64_t count, F f) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) to[i] = f(from[i]);
}

// to = op(…op(op(a, b), c)…) of 2, 3 or 4 inputs; `last` makes the element that is stored.
template <class T, class Op, class Last>
void combine(const T* const* from, std::size_t inputs, T* to, std::int64_t count, Op op, Last last) {
  const T *a = from[0], *b = from[1];
  if (inputs == 2) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = last(op(a[i], b[i]));
    return;
  }
  const T* c = from[2];
  if (inputs == 3) {
    LOCKSTEP_INDEPENDENT
    for (std::int64_t i = 0; i < count; ++i) to[i] = last(op(op(a[i], b[i]), c[i]));
    return;
  }
  const T* d = from[3];
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) to[i] = last(op(op(op(a[i], b[i]), c[i]), d[i]));
}

template <class T, class Op>
void accumulate(T* sum, const T* a, std::int64_t count, Op op) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) sum[i] = op(sum[i], a[i]);
}

// Of a dtype that computes in another one: by rows of that one.
template <class T, class Op, class Last>
requires(!std::is_same_v<T, Wide<T>>) void reduce_block(std::span<const T* const> inputs, T* output, std::int64_t count,
                                                        Op op, Last last) {
  using kernels::host::convert_row;
  Wide<T> sum[kBlock], row[kBlock];
  convert_row(inputs[0], sum, count);
  for (const T* input : inputs.subspan(1)) {
    convert_row(input, row, count);
    accumulate(sum, row, count, op);
  }
  map(sum, sum, count, last);
  convert_row(sum, output, count);
}

template <class T, class Op, class Last>
void reduce_block(std::span<const T* const> inputs, T* output, std::int64_t count, Op op, Last last) {
  if (inputs.size() == 1) return map(inputs[0], output, count, last);
  if (inputs.size() <= 4) return combine(inputs.data(), inputs.size(), output, count, op, last);
  T sum[kBlock];
  combine(inputs.data(), 4, sum, count, op, [](T x) { return x; });
  for (const T* input : inputs.subspan(4)) accumulate(sum, input, count, op);
  map(sum, output, count, last);
}

template <class T, class Op, class Last>
void reduce_all(std::span<const void* const> inputs, std::span<void* const> outputs, std::int64_t count, Op op,
                Last last) {
  const T* few[8];
  std::vector<const T*> many(inputs.size() > 8 ? inputs.size() : 0);
  const T** from = many.empty() ? few : many.data();
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    for (std::size_t k = 0; k < inputs.size(); ++k) from[k] = static_cast<const T*>(inputs[k]) + begin;
    T* first = static_cast<T*>(outputs[0]) + begin;
    reduce_block(std::span<const T* const>(from, inputs.size()), first, length, op, last);
    for (std::size_t k = 1; k < outputs.size(); ++k)
      std::memcpy(static_cast<T*>(outputs[k]) + begin, first, static_cast<std::size_t>(length) * sizeof(T));
  }
}

}  // namespace

void host_reduce(RedOp reduction, DType dtype, std::span<const void* const> inputs, std::span<void* const> outputs,
                 std::int64_t count) {
  if (outputs.empty() || count == 0) return;
  if (dtype == DType::boolean) {
    const auto as_bool = [](std::uint8_t x) { return static_cast<std::uint8_t>(x != 0); };
    if (reduction == RedOp::min || reduction == RedOp::product)
      return reduce_all<std::uint8_t>(inputs, outputs, count, And(), as_bool);
    return reduce_all<std::uint8_t>(inputs, outputs, count, Or(), as_bool);
  }
  dispatch(dtype, [&]<class T>(Type<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      using W = Wide<T>;
      const auto store = [](W x) { return x; };
      switch (reduction) {
        case RedOp::sum:
          return reduce_all<T>(inputs, outputs, count, Add(), store);
        case RedOp::avg:
          if constexpr (std::is_floating_point_v<W>) {
            const W ranks = static_cast<W>(inputs.size());
            return reduce_all<T>(inputs, outputs, count, Add(), [ranks](W x) { return x / ranks; });
          } else {
            detail::fail<InvalidArgument>("[host_reduce] expected a floating dtype for avg, got ", dtype);
          }
        case RedOp::max:
          return reduce_all<T>(inputs, outputs, count, Max(), store);
        case RedOp::min:
          return reduce_all<T>(inputs, outputs, count, Min(), store);
        case RedOp::product:
          return reduce_all<T>(inputs, outputs, count, Multiply(), store);
      }
    }
  });
}

}  // namespace lockstep
