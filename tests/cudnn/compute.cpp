#include <cmath>
#include <cstring>
#include <limits>
#include <map>

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

using Index = std::array<std::int64_t, 4>;

// The place of an element in a smaller tensor, whose element or group goes with several.
std::int64_t place(const Tensor& t, const Index& of, const std::array<std::int64_t, 4>& dims) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < 4; ++d) at += of[d] * t.dims[d] / dims[d] * t.strides[d];
  return at;
}
template <class F>
void for_each(const std::array<std::int64_t, 4>& dims, F&& f) {
  Index i;
  for (i[0] = 0; i[0] < dims[0]; ++i[0])
    for (i[1] = 0; i[1] < dims[1]; ++i[1])
      for (i[2] = 0; i[2] < dims[2]; ++i[2])
        for (i[3] = 0; i[3] < dims[3]; ++i[3]) f(i);
}

// Runs operations one after another. What lies between them is as it would be in memory, rounded to its type.
class Interpreter {
 public:
  void run(const Operation& o) {
    switch (o.kind) {
      case kPointwiseOperation:
        for_each(o.y.dims, [&](const Index& i) { write(o.y, i, pointwise(o, i)); });
        break;
      case kMatmulOperation:
        for_each(o.y.dims, [&](const Index& i) {
          double sum = 0;
          for (std::int64_t k = 0; k < o.x.dims[3]; ++k)
            sum += read(o.x, {i[0], i[1], i[2], k}, {o.y.dims[0], o.y.dims[1], o.y.dims[2], o.x.dims[3]}) *
                   read(o.b, {i[0], i[1], k, i[3]}, {o.y.dims[0], o.y.dims[1], o.b.dims[2], o.y.dims[3]});
          write(o.y, i, sum);
        });
        break;
      case kReductionOperation: {
        std::vector<double> found(static_cast<std::size_t>(o.y.count()),
                                  o.reduction == kReduceMax ? -std::numeric_limits<double>::infinity() : 0);
        Tensor dense = o.y;
        dense.strides = {o.y.dims[1] * o.y.dims[2] * o.y.dims[3], o.y.dims[2] * o.y.dims[3], o.y.dims[3], 1};
        for_each(o.x.dims, [&](const Index& i) {
          double& to = found[static_cast<std::size_t>(place(dense, i, o.x.dims))];
          const double x = read(o.x, i, o.x.dims);
          to = o.reduction == kReduceAdd ? to + x : std::max(to, x);
        });
        for_each(o.y.dims,
                 [&](const Index& i) { write(o.y, i, found[static_cast<std::size_t>(place(dense, i, o.y.dims))]); });
        break;
      }
      default: {  // a reshape: the memory as it is, with other sizes and strides
        std::map<std::int64_t, double> memory;
        for_each(o.x.dims, [&](const Index& i) { memory[place(o.x, i, o.x.dims)] = read(o.x, i, o.x.dims); });
        for_each(o.y.dims, [&](const Index& i) { write(o.y, i, memory.at(place(o.y, i, o.y.dims))); });
      }
    }
  }

 private:
  double pointwise(const Operation& o, const Index& i) const {
    if (o.mode == kGenerateIndex) return static_cast<double>(i[static_cast<std::size_t>(o.axis)]);
    const double x = read(o.x, i, o.y.dims), b = o.b.count() ? read(o.b, i, o.y.dims) : 0;
    switch (o.mode) {
      case kAdd:
        return x + b;
      case kMul:
        return x * b;
      case kDiv:
        return x / b;
      case kSub:
        return x - b;
      case kExp:
        return std::exp(x);
      case kLog:
        return std::log(x);
      case kGreaterEqual:
        return x >= b;
      default:
        return read(o.t, i, o.y.dims) != 0 ? x : b;
    }
  }
  double read(const Tensor& t, const Index& i, const std::array<std::int64_t, 4>& dims) const {
    const std::int64_t at = place(t, i, dims);
    if (t.is_virtual) return between_.at(t.id)[static_cast<std::size_t>(at)];
    if (t.type == kInt32) return static_cast<const std::int32_t*>(t.data)[at];
    return cudnn_stand_in::read(Array{t.data, t.type, {}, false, 0}, at);
  }
  void write(const Tensor& t, const Index& i, double value) {
    const std::int64_t at = place(t, i, t.dims);
    if (!t.is_virtual) return cudnn_stand_in::write(Array{t.data, t.type, {}, false, 0}, at, value);
    std::vector<float>& values = between_[t.id];
    std::int64_t last = 0;
    for (std::size_t d = 0; d < 4; ++d) last += (t.dims[d] - 1) * t.strides[d];
    values.resize(static_cast<std::size_t>(last) + 1);
    const auto narrow = static_cast<float>(value);
    values[static_cast<std::size_t>(at)] = t.type == kHalf       ? static_cast<float>(Half(narrow))
                                           : t.type == kBfloat16 ? static_cast<float>(BFloat16(narrow))
                                                                 : narrow;
  }

  std::map<std::int64_t, std::vector<float>> between_;
};

}  // namespace

void compute(const Graph& graph) {
  if (graph.workspace) std::memset(graph.workspace, 0xff, static_cast<std::size_t>(graph.workspace_bytes));
  Interpreter interpreter;
  for (const Operation& operation : graph.operations) interpreter.run(operation);
}

void compute(const Convolution& c) {
  if (c.workspace) std::memset(c.workspace, 0xff, static_cast<std::size_t>(c.workspace_bytes));
  const Array& result = c.kind == kForward ? c.y : c.kind == kBackwardData ? c.x : c.w;
  std::vector<double> sums(static_cast<std::size_t>(result.count()));
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
  const auto channel_of = [&](std::int64_t i) {
    return (result.channels_last ? i : i / (result.dims[2] * result.dims[3])) % result.dims[1];
  };
  for (std::int64_t i = 0; i < result.count(); ++i) {
    const double held = c.beta == 0 ? 0 : c.beta * read(result, i);
    const double bias = c.bias.count() == 0 ? 0 : read(c.bias, channel_of(i));
    write(result, i, c.alpha * sums[static_cast<std::size_t>(i)] + held + bias);
  }
}

}  // namespace cudnn_stand_in
