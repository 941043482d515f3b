// A sum of several tensors in the order of a list.
#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {
namespace {

// A block of sums stays in the first-level cache while term after term is added.
constexpr std::int64_t kBlock = 2048;

template <class C>
void add(const std::array<const void*, 2>& in, void* out, std::int64_t count, const Scalars&) {
  const auto* x = static_cast<const C*>(in[0]);
  const auto* y = static_cast<const C*>(in[1]);
  auto* z = static_cast<C*>(out);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) z[i] = x[i] + y[i];
}

View block_of(const View& view, std::int64_t begin, std::int64_t count) {
  View block = view;
  block.data = static_cast<std::byte*>(view.data) + begin * static_cast<std::int64_t>(size_of(view.dtype));
  block.shape = {count};
  block.strides = {1};
  return block;
}

template <class T>
void ordered_sum(const OrderedSumArgs& args) {
  const Loop<2> loop = add<functors::Compute<T>>;
  const std::int64_t all = element_count(args.out.view.shape);
  const auto add_block = [&](std::int64_t begin) {
    const std::int64_t count = std::min(kBlock, all - begin);
    const View out = block_of(args.out.view, begin, count);
    View sum = block_of(args.terms[0].view, begin, count);
    // Not in the output before the last term, which may be any of the terms.
    alignas(64) std::byte sums[kBlock * sizeof(T)];
    View between = out;
    between.data = sums;
    for (std::size_t i = 1; i < args.terms.size(); ++i) {
      const View term = block_of(args.terms[i].view, begin, count);
      const View& to = i + 1 < args.terms.size() ? between : out;
      elementwise<2>({&sum, &term}, to, HalfAs::floats, loop, {});
      sum = to;
    }
    if (sum.data != out.data) std::memcpy(out.data, sum.data, static_cast<std::size_t>(count) * sizeof(T));
  };
  const std::int64_t blocks = (all + kBlock - 1) / kBlock;
  const auto terms = static_cast<std::int64_t>(args.terms.size() + 1);
  const std::int64_t block_bytes = kBlock * terms * static_cast<std::int64_t>(sizeof(T));
  for_pieces(blocks, piece_rows(blocks, block_bytes, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) add_block(block * kBlock);
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const OrderedSumArgs& args) {
  check_floating(OrderedSumArgs::kName, args.out.view.dtype, stream);
  launch(stream, args, [](const OrderedSumArgs& a) {
    dispatch_floating(a.out.view.dtype, [&]<class T>(Type<T>) { ordered_sum<T>(a); });
  });
}

}  // namespace lockstep::kernels::host
