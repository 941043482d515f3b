#include <algorithm>

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/fold.h"
#include "lockstep/kernels/host/gather.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/lines.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {
namespace {

using functors::Compute;

// The position of the first extreme among contiguous elements. Two passes, of which the first is vector code and the
// second ends early.
template <class L, bool kMax>
std::int64_t find_extreme(const void* elements, std::int64_t count) {
  const auto* x = static_cast<const L*>(elements);
  L extreme = x[0];
  for (std::int64_t i = 0; i < count; i += kRun) {
    const std::int64_t n = std::min(kRun, count - i);
    if constexpr (kMax)
      extreme = functors::larger(extreme, fold<Larger<L>, L, L>(x + i, n));
    else
      extreme = functors::smaller(extreme, fold<Smaller<L>, L, L>(x + i, n));
  }
  std::int64_t i = 0;
  if (functors::is_nan(extreme)) {
    while (!functors::is_nan(x[i])) ++i;
  } else {
    while (x[i] != extreme) ++i;
  }
  return i;
}

constexpr std::int64_t kGatheredBytes = std::int64_t{1} << 17;

using FindExtreme = std::int64_t (*)(const void* elements, std::int64_t count);

void arg_reduce_views(const ArgReduceArgs& args, FindExtreme find) {
  const View& in = args.in.view;
  const std::int64_t size = in.shape[args.dim], stride = in.strides[args.dim];
  const Mover mover = find_mover(in.dtype, HalfAs::floats);
  const bool direct = stride == 1 && mover.buffer_bytes == size_of(in.dtype);
  const auto element_bytes = static_cast<std::int64_t>(size_of(in.dtype));
  Shape kept = in.shape;
  kept[args.dim] = 1;
  const std::int64_t results = element_count(kept);
  auto* out = data<std::int64_t>(args.out);
  const LoopNest<2> nest = make_loop_nest<2>(kept, {&in, &args.out.view});
  // Lines side by side are gathered together: each line of the cache is read once for all of them.
  const std::int64_t together = direct ? 1 : std::clamp<std::int64_t>(kGatheredBytes / (size * element_bytes), 1, 64);
  for_pieces(
      results, piece_rows(results, size * element_bytes, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
        Scratch scratch;
        const std::int64_t line_bytes = size * static_cast<std::int64_t>(mover.buffer_bytes);
        auto* gathered = direct ? nullptr : scratch.take<std::byte>(together * line_bytes);
        for_each_run(nest, begin, end, [&](const std::array<std::int64_t, 2>& run, std::int64_t from, std::int64_t to) {
          const std::int64_t next = nest.inner_stride(0);
          for (std::int64_t i = from; i < to; i += together) {
            const std::int64_t lines = std::min(together, to - i);
            const std::byte* x = static_cast<const std::byte*>(in.data) + (run[0] + i * next) * element_bytes;
            if (!direct) mover.gather(x, stride, next, gathered, {lines, size});
            for (std::int64_t k = 0; k < lines; ++k)
              out[run[1] + (i + k) * nest.inner_stride(1)] = find(direct ? x : gathered + k * line_bytes, size);
          }
        });
      });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const ArgReduceArgs& args) {
  const View& in = args.in.view;
  LOCKSTEP_CHECK(in.shape[args.dim] > 0 || element_count(args.out.view.shape) == 0,
                 "[arg_reduce] expected at least one element, got shape ", in.shape);
  const FindExtreme find = dispatch(in.dtype, [&]<class T>(Type<T>) -> FindExtreme {
    return args.op == ArgReduceOp::max ? find_extreme<Compute<T>, true> : find_extreme<Compute<T>, false>;
  });
  launch(stream, args, [find](const ArgReduceArgs& a) { arg_reduce_views(a, find); });
}

}  // namespace lockstep::kernels::host
