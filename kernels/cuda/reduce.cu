#include <cmath>
#include <limits>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Sums of f32 and f64 accumulate in double, as on the host; those of the 16-bit types in float, integers in 64 bits.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float> || std::is_same_v<T, double>, double,
                                std::conditional_t<std::is_integral_v<T>, std::int64_t, float>>;

enum class Join { add, add_squares, multiply, larger, smaller };

template <class T, Join kJoin>
struct Reduce : Anywhere {
  static constexpr bool kAdds = kJoin == Join::add || kJoin == Join::add_squares;
  static constexpr bool kWide = kAdds || kJoin == Join::multiply;
  static constexpr int kInputs = 1;
  using Accumulator = std::conditional_t<kWide, Wide<T>, Compute<T>>;
  using Element = T;
  using Limits = std::numeric_limits<Accumulator>;
  std::array<const T*, 1> in;
  T* out;
  bool mean;
  std::int64_t elements;  // of one result

  __device__ Accumulator start() const {
    if constexpr (kAdds)
      return 0;
    else if constexpr (kJoin == Join::multiply)
      return 1;
    else if constexpr (kJoin == Join::larger)
      return Limits::has_infinity ? -Limits::infinity() : Limits::min();
    else
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  __device__ Accumulator load(std::int64_t, std::int64_t, std::int64_t, T value) const {
    const auto x = static_cast<Accumulator>(widen(value));
    return kJoin == Join::add_squares ? x * x : x;
  }
  __device__ Accumulator join(Accumulator a, Accumulator b) const {
    if constexpr (kAdds)
      return functors::plus(a, b);
    else if constexpr (kJoin == Join::multiply)
      return functors::times(a, b);
    else if constexpr (kJoin == Join::larger)
      return functors::larger(a, b);
    else
      return functors::smaller(a, b);
  }
  __device__ void finish(std::int64_t, std::int64_t offset, Accumulator total) const {
    if constexpr (kJoin == Join::add && std::is_floating_point_v<Accumulator>)
      if (mean) total /= static_cast<Accumulator>(elements);
    if constexpr (kJoin == Join::add_squares) total = std::sqrt(total);
    out[offset] = narrow<T>(static_cast<Compute<T>>(total));
  }
};

template <class T>
struct Found {
  Compute<T> value;
  std::int64_t position;  // negative: nothing yet
};
template <class T>
struct ArgReduce : Anywhere {
  static constexpr int kInputs = 1;
  using Accumulator = Found<T>;
  using Element = T;
  std::array<const T*, 1> in;
  std::int64_t* out;
  bool max;

  __device__ Accumulator start() const { return {Compute<T>(0), -1}; }
  __device__ Accumulator load(std::int64_t, std::int64_t, std::int64_t position, T value) const {
    return {widen(value), position};
  }
  __device__ Accumulator join(Accumulator a, Accumulator b) const {
    if (a.position < 0) return b;
    if (b.position < 0) return a;
    const bool first = a.position < b.position;
    const bool a_nan = functors::is_nan(a.value), b_nan = functors::is_nan(b.value);
    if (a_nan || b_nan) return a_nan && (first || !b_nan) ? a : b;
    if (a.value == b.value) return first ? a : b;
    return (a.value > b.value) == max ? a : b;
  }
  __device__ void finish(std::int64_t, std::int64_t offset, Accumulator total) const { out[offset] = total.position; }
};

// What is kept and what is reduced: a dimension that is longer in the input than in the output is reduced.
FoldShape make_shape(const View& in, const View& out, bool* lanes_adjacent) {
  Shape kept = in.shape, reduced = in.shape;
  for (int d = 0; d < in.rank(); ++d) {
    const bool is_kept = out.shape[d] != 1 || in.shape[d] == 1;
    (is_kept ? reduced : kept)[d] = 1;
  }
  FoldShape shape;
  shape.kept = make_offsets<2>(kept, {&in, &out});
  shape.reduced = make_offsets<1>(reduced, {&in});
  shape.results = shape.kept.count;
  shape.elements = shape.reduced.count;
  const bool columns = shape.kept.rank > 0 && shape.reduced.rank > 0 && shape.results > 1 &&
                       shape.kept.strides[0][0] < shape.reduced.strides[0][0];
  *lanes_adjacent = !columns;
  return shape;
}

template <class T, Join kJoin>
void run(const Stream& stream, const ReduceArgs& args) {
  bool lanes_adjacent;
  const FoldShape shape = make_shape(args.in.view, args.out.view, &lanes_adjacent);
  const Reduce<T, kJoin> operation{
      {}, {data<T>(args.in)}, data<T>(args.out), args.op == ReduceOp::mean, shape.elements};
  fold(stream, ReduceArgs::kName, operation, shape, lanes_adjacent);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const ReduceArgs& args) {
  const View& in = args.in.view;
  const ReduceOp op = args.op;
  const bool logical = op == ReduceOp::any || op == ReduceOp::all, extreme = op == ReduceOp::max || op == ReduceOp::min;
  const bool is_bool = in.dtype == DType::boolean;
  if (is_bool ? !logical && !extreme
              : logical || ((op == ReduceOp::mean || op == ReduceOp::norm) && !is_floating(in.dtype))) [[unlikely]]
    fail_dtype(ReduceArgs::kName, in.dtype, stream);
  if (extreme)
    LOCKSTEP_CHECK(element_count(in.shape) > 0 || element_count(args.out.view.shape) == 0,
                   "[reduce] expected at least one element for max and min, got shape ", in.shape);
  dispatch(in.dtype, [&]<class T>(Type<T>) {
    if (op == ReduceOp::max || op == ReduceOp::any) return run<T, Join::larger>(stream, args);
    if (op == ReduceOp::min || op == ReduceOp::all) return run<T, Join::smaller>(stream, args);
    if constexpr (!std::is_same_v<T, bool>) {
      if (op == ReduceOp::prod)
        run<T, Join::multiply>(stream, args);
      else if constexpr (is_floating(dtype_of<T>()))
        op == ReduceOp::norm ? run<T, Join::add_squares>(stream, args) : run<T, Join::add>(stream, args);
      else
        run<T, Join::add>(stream, args);
    }
  });
}

void Kernels::enqueue(const Stream& stream, const ArgReduceArgs& args) {
  const View& in = args.in.view;
  LOCKSTEP_CHECK(in.shape[args.dim] > 0 || element_count(args.out.view.shape) == 0,
                 "[arg_reduce] expected at least one element, got shape ", in.shape);
  Shape kept = in.shape;
  kept[args.dim] = 1;
  Shape line = Dims::filled(in.rank(), 1);
  line[args.dim] = in.shape[args.dim];
  FoldShape shape;
  shape.kept = make_offsets<2>(kept, {&in, &args.out.view});
  shape.reduced = make_offsets<1>(line, {&in});
  shape.results = shape.kept.count;
  shape.elements = shape.reduced.count;
  const bool columns = shape.kept.rank > 0 && shape.results > 1 && shape.kept.strides[0][0] < in.strides[args.dim];
  dispatch(in.dtype, [&]<class T>(Type<T>) {
    const ArgReduce<T> operation{{}, {data<T>(args.in)}, data<std::int64_t>(args.out), args.op == ArgReduceOp::max};
    fold(stream, ArgReduceArgs::kName, operation, shape, !columns);
  });
}

void list_reduce(KernelList& list) {
  for_all([&]<class T>(Type<T>) {
    list_fold<Reduce<T, Join::larger>>(list);
    list_fold<Reduce<T, Join::smaller>>(list);
    list_fold<ArgReduce<T>>(list);
    if constexpr (!std::is_same_v<T, bool>) {
      list_fold<Reduce<T, Join::add>>(list);
      list_fold<Reduce<T, Join::multiply>>(list);
      if constexpr (is_floating(dtype_of<T>())) list_fold<Reduce<T, Join::add_squares>>(list);
    }
  });
}

}  // namespace lockstep::kernels::cuda
