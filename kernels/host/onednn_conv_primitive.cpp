#include "lockstep/kernels/host/onednn_conv_primitive.h"

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <atomic>
#include <cstring>

namespace lockstep::kernels::host::onednn {
namespace {

using dnnl::algorithm;

// Threads work with the same primitives, so they have the same engine. It is never destroyed.
dnnl::engine& engine() {
  static dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}
dnnl::stream& stream() {
  static thread_local dnnl::stream stream(engine());
  return stream;
}

memory::desc layout(const memory::dims& dims, memory::format_tag tag) { return {dims, memory::data_type::f32, tag}; }

memory::dims w_dims(const ConvSizes& s) {
  const Window2d& w = s.window;
  if (s.groups > 1) return {s.groups, s.group_outputs, s.group_channels, w.kernel[0], w.kernel[1]};
  return {s.outputs, s.channels, w.kernel[0], w.kernel[1]};
}

#if DNNL_VERSION_MAJOR >= 3
template <class Primitive, class... Args>
typename Primitive::primitive_desc describe(const dnnl::primitive_attr& attributes, const Args&... args) {
  return {engine(), args..., attributes};
}
template <class Primitive, class Forward, class... Args>
typename Primitive::primitive_desc describe_backward(const dnnl::primitive_attr& attributes, const Forward& forward,
                                                     const Args&... args) {
  return {engine(), args..., forward, attributes};
}
#else
template <class Primitive, class... Args>
typename Primitive::primitive_desc describe(const dnnl::primitive_attr& attributes, const Args&... args) {
  return {typename Primitive::desc(args...), attributes, engine()};
}
template <class Primitive, class Forward, class... Args>
typename Primitive::primitive_desc describe_backward(const dnnl::primitive_attr& attributes, const Forward& forward,
                                                     const Args&... args) {
  return {typename Primitive::desc(args...), attributes, engine(), forward};
}
#endif

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool is_reference(const char* implementation) { return std::strstr(implementation, "ref") != nullptr; }

}  // namespace

Layouts plain_layouts(const ConvSizes& whole, const ConvSizes& s, bool has_bias) {
  const auto strided = [](const memory::dims& dims, const memory::dims& strides) {
    return memory::desc(dims, memory::data_type::f32, strides);
  };
  const std::int64_t kernel_width = s.window.kernel[1], channels = whole.group_channels;
  memory::dims w_strides{whole.taps(), s.kernel(), kernel_width, 1};
  if (whole.weights_channels_last) w_strides = {whole.taps(), 1, kernel_width * channels, channels};
  if (s.groups > 1) w_strides.insert(w_strides.begin(), whole.group_outputs * whole.taps());
  memory::dims x_strides{whole.channels * whole.plane(), whole.channel_step(), whole.row_step(), 1};
  memory::dims y_strides{whole.outputs * whole.out_plane(), whole.out_channel_step(), whole.out_row_step(), 1};
  if (whole.channels_last) {
    x_strides[3] = whole.channels;
    y_strides[3] = whole.outputs;
    if (s.batch == 1) {  // rows of one image have no gaps, and oneDNN wants to see that
      x_strides[0] = whole.channels * s.plane();
      y_strides[0] = whole.outputs * s.out_plane();
    }
  }
  return {strided({s.batch, s.channels, s.height, s.width}, x_strides), strided(w_dims(s), w_strides),
          has_bias ? layout({s.outputs}, memory::format_tag::x) : memory::desc(),
          strided({s.batch, s.outputs, s.out_height, s.out_width}, y_strides)};
}

float* take(Scratch& scratch, const memory::desc& layout) {
  return scratch.take<float>(static_cast<std::int64_t>((layout.get_size() + sizeof(float) - 1) / sizeof(float)));
}

Operand::Operand(int id, const memory::desc& plain_layout, const memory::desc& inner_layout, bool is_output)
    : argument(id), plain(plain_layout), inner(inner_layout), output(is_output) {
  if (plain != inner)
    conversion.emplace(
        dnnl::reorder::primitive_desc(engine(), output ? inner : plain, engine(), output ? plain : inner));
}

void Operand::convert(float* from, float* to) const {
  memory plain_memory(plain, engine(), from), inner_memory(inner, engine(), to);
  conversion->execute(stream(), plain_memory, inner_memory);
  stream().wait();
}

Convolution::Convolution(ConvKind kind, const ConvSizes& whole, const ConvSizes& s, bool has_bias, bool in_place)
    : number(next_number()) {
  using tag = memory::format_tag;
  const Layouts plain = plain_layouts(whole, s, has_bias);
  const Layouts any{in_place ? plain.x : layout({s.batch, s.channels, s.height, s.width}, tag::any),
                    layout(w_dims(s), tag::any), plain.bias,
                    in_place ? plain.y : layout({s.batch, s.outputs, s.out_height, s.out_width}, tag::any)};
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
  const auto forward =
      describe<dnnl::convolution_forward>(attributes, dnnl::prop_kind::forward_training, algorithm::convolution_direct,
                                          any.x, any.w, any.bias, any.y, strides, dilations, before, behind);
  const auto add = [&](int argument, const memory::desc& own, const memory::desc& inner, bool output) {
    operands.emplace_back(argument, own, inner, output);
  };
  if (kind == ConvKind::forward) {
    add(DNNL_ARG_SRC, plain.x, forward.src_desc(), false);
    add(DNNL_ARG_WEIGHTS, plain.w, forward.weights_desc(), false);
    if (has_bias) add(DNNL_ARG_BIAS, plain.bias, plain.bias, false);
    add(DNNL_ARG_DST, plain.y, forward.dst_desc(), true);
    primitive = dnnl::convolution_forward(forward);
    reference = is_reference(forward.impl_info_str());
    scratchpad = forward.scratchpad_desc();
  } else if (kind == ConvKind::grad_input) {
    const auto backward = describe_backward<dnnl::convolution_backward_data>(
        attributes, forward, algorithm::convolution_direct, any.x, any.w, any.y, strides, dilations, before, behind);
    add(DNNL_ARG_DIFF_DST, plain.y, backward.diff_dst_desc(), false);
    add(DNNL_ARG_WEIGHTS, plain.w, backward.weights_desc(), false);
    add(DNNL_ARG_DIFF_SRC, plain.x, backward.diff_src_desc(), true);
    primitive = dnnl::convolution_backward_data(backward);
    reference = is_reference(backward.impl_info_str());
    scratchpad = backward.scratchpad_desc();
  } else {
    const auto backward = describe_backward<dnnl::convolution_backward_weights>(
        attributes, forward, algorithm::convolution_direct, any.x, any.w, any.y, strides, dilations, before, behind);
    add(DNNL_ARG_DIFF_DST, plain.y, backward.diff_dst_desc(), false);
    add(DNNL_ARG_SRC, plain.x, backward.src_desc(), false);
    add(DNNL_ARG_DIFF_WEIGHTS, plain.w, backward.diff_weights_desc(), true);
    primitive = dnnl::convolution_backward_weights(backward);
    reference = is_reference(backward.impl_info_str());
    scratchpad = backward.scratchpad_desc();
  }
}

Execution& Execution::of(const Convolution& convolution) {
  static thread_local std::unordered_map<std::uint64_t, Execution> kept;
  constexpr std::size_t kMost = 512;
  if (const auto found = kept.find(convolution.number); found != kept.end()) return found->second;
  if (kept.size() >= kMost) kept.clear();
  return kept.emplace(convolution.number, Execution(convolution)).first->second;
}

Execution::Execution(const Convolution& convolution) : convolution_(convolution) {
  for (const Operand& o : convolution.operands) {
    plain_.emplace_back(o.plain, engine(), nullptr);
    inner_.emplace(o.argument, memory(o.inner, engine(), nullptr));
  }
  inner_.emplace(DNNL_ARG_SCRATCHPAD, memory(convolution.scratchpad, engine(), nullptr));
}

bool Execution::run(const Pointers& pointers, const Pointers& ready, bool relu) {
  Scratch scratch;
  inner_.at(DNNL_ARG_SCRATCHPAD).set_data_handle(take(scratch, convolution_.scratchpad));
  memory* last = nullptr;
  for (std::size_t i = 0; i < plain_.size(); ++i) {
    const Operand& o = convolution_.operands[i];
    memory& inner = inner_.at(o.argument);
    last = &inner;
    if (ready[i]) {
      inner.set_data_handle(ready[i]);
    } else if (!o.conversion) {
      inner.set_data_handle(pointers[i]);
    } else {
      plain_[i].set_data_handle(pointers[i]);
      inner.set_data_handle(take(scratch, o.inner));
      if (!o.output) o.conversion->execute(stream(), plain_[i], inner);
    }
  }
  convolution_.primitive.execute(stream(), inner_);
  const Operand& o = convolution_.operands.back();
  if (o.conversion) {
    if (relu) {
      stream().wait();
      relu_in_place(static_cast<float*>(last->get_data_handle()),
                    static_cast<std::int64_t>(o.inner.get_size() / sizeof(float)));
    }
    o.conversion->execute(stream(), *last, plain_.back());
  }
  stream().wait();
  return !relu || o.conversion;
}

}  // namespace lockstep::kernels::host::onednn

#endif
