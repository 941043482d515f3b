#include "lockstep/kernels/host/onednn.h"

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lockstep/kernels/host/one_thread.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/runtime/library_threads.h"

namespace lockstep::kernels::host {
namespace {

using dnnl::algorithm;
using dnnl::memory;

enum class Kind : std::int64_t { forward, grad_input, grad_weight };

struct Descriptions {
  memory::desc x, w, bias, y;
};

// A primitive with its operands. oneDNN chooses the layouts that it computes in (blocks of channels): operands are
// converted on the way in and out, which costs less than computing in plain layouts.
class Convolution {
 public:
  Convolution(Kind kind, const ConvSizes& sizes, bool has_bias);

  // Pointers in the order of the arguments of the function: inputs, then the output.
  void run(const std::array<const void*, 4>& pointers);

 private:
  struct Operand {
    int argument;
    memory plain, inner;
    std::optional<dnnl::reorder> conversion;
    bool output;
  };

  void add(int argument, const memory::desc& plain, const memory::desc& inner, bool output);

  dnnl::primitive primitive_;
  std::vector<Operand> operands_;
  memory scratchpad_;
};

dnnl::engine& engine() {
  static thread_local dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}
dnnl::stream& stream() {
  static thread_local dnnl::stream stream(engine());
  return stream;
}

memory::desc description(const memory::dims& dims, memory::format_tag tag) {
  return {dims, memory::data_type::f32, tag};
}

Convolution::Convolution(Kind kind, const ConvSizes& s, bool has_bias) {
  const bool grouped = s.groups > 1;
  const memory::dims w_dims =
      grouped ? memory::dims{s.groups, s.group_outputs, s.group_channels, s.window.kernel[0], s.window.kernel[1]}
              : memory::dims{s.outputs, s.channels, s.window.kernel[0], s.window.kernel[1]};
  const auto describe = [&](bool plain) {
    using tag = memory::format_tag;
    return Descriptions{description({s.batch, s.channels, s.height, s.width}, plain ? tag::nchw : tag::any),
                        description(w_dims, !plain    ? tag::any
                                            : grouped ? tag::goihw
                                                      : tag::oihw),
                        has_bias ? description({s.outputs}, tag::x) : memory::desc(),
                        description({s.batch, s.outputs, s.out_height, s.out_width}, plain ? tag::nchw : tag::any)};
  };
  const Descriptions plain = describe(true), any = describe(false);
  const Window2d& w = s.window;
  const memory::dims strides{w.stride[0], w.stride[1]}, dilations{w.dilation[0] - 1, w.dilation[1] - 1};
  const memory::dims before{w.padding[0], w.padding[1]};
  // oneDNN wants the padding at the far end that the last window reaches, not what the caller asked for.
  const auto after = [&](std::size_t d, std::int64_t size, std::int64_t out_size) {
    return (out_size - 1) * w.stride[d] + (std::int64_t{w.kernel[d]} - 1) * w.dilation[d] + 1 - size - w.padding[d];
  };
  const memory::dims behind{after(0, s.height, s.out_height), after(1, s.width, s.out_width)};

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm::convolution_direct, any.x, any.w, any.bias, any.y, strides,
       dilations, before, behind},
      attributes, engine());
  memory::desc scratchpad;
  if (kind == Kind::forward) {
    add(DNNL_ARG_SRC, plain.x, forward.src_desc(), false);
    add(DNNL_ARG_WEIGHTS, plain.w, forward.weights_desc(), false);
    if (has_bias) add(DNNL_ARG_BIAS, plain.bias, plain.bias, false);
    add(DNNL_ARG_DST, plain.y, forward.dst_desc(), true);
    primitive_ = dnnl::convolution_forward(forward);
    scratchpad = forward.scratchpad_desc();
  } else if (kind == Kind::grad_input) {
    const dnnl::convolution_backward_data::primitive_desc backward(
        {algorithm::convolution_direct, any.x, any.w, any.y, strides, dilations, before, behind}, attributes, engine(),
        forward);
    add(DNNL_ARG_DIFF_DST, plain.y, backward.diff_dst_desc(), false);
    add(DNNL_ARG_WEIGHTS, plain.w, backward.weights_desc(), false);
    add(DNNL_ARG_DIFF_SRC, plain.x, backward.diff_src_desc(), true);
    primitive_ = dnnl::convolution_backward_data(backward);
    scratchpad = backward.scratchpad_desc();
  } else {
    const dnnl::convolution_backward_weights::primitive_desc backward(
        {algorithm::convolution_direct, any.x, any.w, any.y, strides, dilations, before, behind}, attributes, engine(),
        forward);
    add(DNNL_ARG_DIFF_DST, plain.y, backward.diff_dst_desc(), false);
    add(DNNL_ARG_SRC, plain.x, backward.src_desc(), false);
    add(DNNL_ARG_DIFF_WEIGHTS, plain.w, backward.diff_weights_desc(), true);
    primitive_ = dnnl::convolution_backward_weights(backward);
    scratchpad = backward.scratchpad_desc();
  }
  scratchpad_ = memory(scratchpad, engine(), nullptr);
}

void Convolution::add(int argument, const memory::desc& plain, const memory::desc& inner, bool output) {
  Operand o{argument, memory(plain, engine(), nullptr), memory(inner, engine(), nullptr), std::nullopt, output};
  if (plain != inner) o.conversion = output ? dnnl::reorder(o.inner, o.plain) : dnnl::reorder(o.plain, o.inner);
  operands_.push_back(std::move(o));
}

void Convolution::run(const std::array<const void*, 4>& pointers) {
  Scratch scratch;
  const auto take = [&](const memory& m) {
    return scratch.take<std::byte>(static_cast<std::int64_t>(m.get_desc().get_size()));
  };
  scratchpad_.set_data_handle(take(scratchpad_));
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SCRATCHPAD, scratchpad_}};
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    Operand& o = operands_[i];
    o.plain.set_data_handle(const_cast<void*>(pointers[i]));
    if (o.conversion) o.inner.set_data_handle(take(o.inner));
    if (o.conversion && !o.output) o.conversion->execute(stream(), o.plain, o.inner);
    arguments[o.argument] = o.conversion ? o.inner : o.plain;
  }
  primitive_.execute(stream(), arguments);
  for (Operand& o : operands_)
    if (o.conversion && o.output) o.conversion->execute(stream(), o.inner, o.plain);
  stream().wait();
}

using Key = std::array<std::int64_t, 18>;

// Creating a primitive costs as much as a small convolution: a thread keeps those that it has used. An empty entry is a
// convolution that oneDNN does not have.
std::optional<Convolution>& find(Kind kind, const ConvSizes& s, bool has_bias) {
  static thread_local std::map<Key, std::optional<Convolution>> cache;
  constexpr std::size_t kMost = 256;
  const Window2d& w = s.window;
  const Key key{static_cast<std::int64_t>(kind),
                s.batch,
                s.channels,
                s.height,
                s.width,
                s.outputs,
                s.out_height,
                s.out_width,
                s.groups,
                w.kernel[0],
                w.kernel[1],
                w.stride[0],
                w.stride[1],
                w.padding[0],
                w.padding[1],
                w.dilation[0],
                w.dilation[1],
                has_bias};
  if (const auto found = cache.find(key); found != cache.end()) return found->second;
  if (cache.size() >= kMost) cache.clear();
  std::optional<Convolution>& entry = cache[key];
  try {
    entry.emplace(kind, s, has_bias);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
  }
  return entry;
}

bool run(Kind kind, const ConvSizes& sizes, bool has_bias, const std::array<const void*, 4>& pointers) {
  const lockstep::detail::ForeignCall call;
  if (!call) return false;
  const OneThread one_thread;
  try {
    std::optional<Convolution>& convolution = find(kind, sizes, has_bias);
    if (!convolution) return false;
    convolution->run(pointers);
    return true;
  } catch (const dnnl::error& error) {
    lockstep::detail::fail<Error>("[conv2d] oneDNN failed with status ", static_cast<int>(error.status), ": ",
                                  error.what());
  }
}

bool is_empty(const ConvSizes& s) { return s.batch * s.outputs * s.out_plane() * s.channels * s.plane() == 0; }

}  // namespace

bool onednn_conv(const ConvSizes& s, const float* x, const float* w, const float* bias, float* y) {
  if (is_empty(s)) return false;
  return bias ? run(Kind::forward, s, true, {x, w, bias, y}) : run(Kind::forward, s, false, {x, w, y});
}

bool onednn_conv_grad_input(const ConvSizes& s, const float* dy, const float* w, float* dx) {
  // Measured: with few channels to write, a matrix product is two to three times as fast.
  if (is_empty(s) || (s.group_channels < 8 && s.groups == 1)) return false;
  return run(Kind::grad_input, s, false, {dy, w, dx});
}

bool onednn_conv_grad_weight(const ConvSizes& s, const float* dy, const float* x, float* dw) {
  if (is_empty(s)) return false;
  return run(Kind::grad_weight, s, false, {dy, x, dw});
}

}  // namespace lockstep::kernels::host

#else

namespace lockstep::kernels::host {

bool onednn_conv(const ConvSizes&, const float*, const float*, const float*, float*) { return false; }
bool onednn_conv_grad_input(const ConvSizes&, const float*, const float*, float*) { return false; }
bool onednn_conv_grad_weight(const ConvSizes&, const float*, const float*, float*) { return false; }

}  // namespace lockstep::kernels::host

#endif
