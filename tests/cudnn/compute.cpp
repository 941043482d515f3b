#include <cstring>

#include "cudnn/stand_in.h"
#include "lockstep/kernels/half.h"

namespace cudnn_stand_in {
namespace {

using lockstep::BFloat16;
using lockstep::Half;

double read(const Array& a, std::int64_t at) {
  if (a.type == kHalf) return static_cast<float>(static_cast<const Half*>(a.data)[at]);
  if (a.type == kBfloat16) return static_cast<float>(static_cast<const BFloat16*>(a.data)[at]);
  return static_cast<const float*>(a.data)[at];
}
void write(const Array& a, std::int64_t at, double value) {
  void* to = const_cast<void*>(a.data);
  const auto rounded = static_cast<float>(value);
  if (a.type == kHalf)
    static_cast<Half*>(to)[at] = Half(rounded);
  else if (a.type == kBfloat16)
    static_cast<BFloat16*>(to)[at] = BFloat16(rounded);
  else
    static_cast<float*>(to)[at] = rounded;
}

std::int64_t count(const Array& a) { return a.dims[0] * a.dims[1] * a.dims[2] * a.dims[3]; }

}  // namespace

void compute(const Convolution& c) {
  if (c.workspace) std::memset(c.workspace, 0xff, static_cast<std::size_t>(c.workspace_bytes));
  const Array& result = c.kind == kForward ? c.y : c.kind == kBackwardData ? c.x : c.w;
  std::vector<double> sums(static_cast<std::size_t>(count(result)));
  const std::int64_t groups = c.x.dims[1] / c.w.dims[1], group_outputs = c.y.dims[1] / groups;
  for (std::int64_t n = 0; n < c.y.dims[0]; ++n)
    for (std::int64_t o = 0; o < c.y.dims[1]; ++o)
      for (std::int64_t i = 0; i < c.y.dims[2]; ++i)
        for (std::int64_t j = 0; j < c.y.dims[3]; ++j)
          for (std::int64_t k = 0; k < c.w.dims[1]; ++k)
            for (std::int64_t r = 0; r < c.w.dims[2]; ++r)
              for (std::int64_t s = 0; s < c.w.dims[3]; ++s) {
                const std::int64_t h = i * c.stride[0] - c.padding[0] + r * c.dilation[0];
                const std::int64_t column = j * c.stride[1] - c.padding[1] + s * c.dilation[1];
                if (h < 0 || h >= c.x.dims[2] || column < 0 || column >= c.x.dims[3]) continue;
                const std::int64_t channel = o / group_outputs * c.w.dims[1] + k;
                const std::int64_t x = c.x.at(n, channel, h, column), w = c.w.at(o, k, r, s), y = c.y.at(n, o, i, j);
                if (c.kind == kForward)
                  sums[static_cast<std::size_t>(y)] += read(c.x, x) * read(c.w, w);
                else if (c.kind == kBackwardData)
                  sums[static_cast<std::size_t>(x)] += read(c.y, y) * read(c.w, w);
                else
                  sums[static_cast<std::size_t>(w)] += read(c.x, x) * read(c.y, y);
              }
  for (std::int64_t i = 0; i < count(result); ++i) {
    const double held = c.beta == 0 ? 0 : c.beta * read(result, i);
    write(result, i, c.alpha * sums[static_cast<std::size_t>(i)] + held);
  }
}

}  // namespace cudnn_stand_in
