#include <algorithm>
#include <cmath>

#include "lockstep/runtime/host/compute_threads.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/quantized_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 16;

std::int64_t divided(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

// The element furthest from 0.
float extreme_of(const float* from, std::int64_t count) {
  float high = 0, low = 0;
  for (std::int64_t i = 0; i < count; ++i) high = std::max(high, from[i]), low = std::min(low, from[i]);
  return -low >= high ? low : high;
}

// `x` in units of `scale`; what has no scale is nothing.
int code_of(float x, float scale, int least, int most) {
  if (scale == 0) return 0;
  const double code = std::nearbyint(static_cast<double>(x) / static_cast<double>(scale));
  return static_cast<int>(std::clamp(code, static_cast<double>(least), static_cast<double>(most)));
}

void quantize_to_bytes(const float* row, std::int64_t columns, std::int8_t* codes, float* scale) {
  *scale = std::abs(extreme_of(row, columns)) / 127;
  for (std::int64_t k = 0; k < columns; ++k) codes[k] = static_cast<std::int8_t>(code_of(row[k], *scale, -127, 127));
}

void quantize_to_nibbles(const float* row, std::int64_t columns, std::int64_t group, std::uint8_t* codes,
                         float* scales) {
  std::fill_n(codes, divided(columns, 2), std::uint8_t{0});
  for (std::int64_t begin = 0; begin < columns; begin += group) {
    const std::int64_t end = std::min(begin + group, columns);
    float scale = extreme_of(row + begin, end - begin) / -8;
    if (scale == 0) scale = 0;  // and not -0
    *scales++ = scale;
    for (std::int64_t k = begin; k < end; ++k) {
      const int half = code_of(row[k], scale, -8, 7) & 15;
      codes[k / 2] = static_cast<std::uint8_t>(codes[k / 2] | half << (k % 2 == 0 ? 0 : 4));
    }
  }
}

QuantizedView view_of(const QuantizedWeight& w) {
  return {{w.codes.view()}, {w.scales.view()}, w.inputs, w.group_size};
}

// x [M, K]; the weight is a constant.
class QuantizedLinearNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "quantized_linear"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    const Tensor gradient = rectified ? detail::relu_backward(grad_outputs[0], y.get(*this)) : grad_outputs[0];
    if (needs(0)) {
      const QuantizedWeight weight{codes.get(*this), scales.get(*this), inputs, group_size};
      grad_inputs[0] = matmul(gradient, weight.dequantize(gradient.dtype()));
    }
    if (needs(1)) grad_inputs[1] = gradient.sum({0});
  }
  Saved codes{*this}, scales{*this}, y{*this};
  std::int64_t inputs = 0, group_size = 0;
  bool rectified = false;
};

}  // namespace

void QuantizedWeight::check(const char* op) const {
  detail::check_same_device(op, codes, scales);
  const bool is_nibbles = codes.dtype() == DType::u8;
  LOCKSTEP_CHECK(codes.rank() == 2 && (is_nibbles || codes.dtype() == DType::i8) && inputs > 0 &&
                     codes.size(1) == (is_nibbles ? divided(inputs, 2) : inputs),
                 "[", op, "] expected codes i8 [outputs, inputs] or u8 [outputs, (inputs + 1) / 2] for ", inputs,
                 " inputs, got ", codes);
  LOCKSTEP_CHECK(is_nibbles ? group_size == 32 || group_size == 64 || group_size == 128 : group_size == inputs, "[", op,
                 "] expected groups of 32, 64 or 128 for 4 bits, and of all ", inputs, " inputs for 8, got ",
                 group_size);
  const Shape wanted{codes.size(0), divided(inputs, group_size)};
  LOCKSTEP_CHECK(scales.dtype() == DType::f32 && scales.shape() == wanted, "[", op, "] expected scales f32 ", wanted,
                 " for codes ", codes, ", got ", scales);
  LOCKSTEP_CHECK(codes.contiguous_layout() && scales.contiguous_layout(), "[", op,
                 "] expected codes and scales that are contiguous, got ", codes, " and ", scales);
}

Tensor QuantizedWeight::dequantize(DType dtype) const {
  check("dequantize");
  LOCKSTEP_CHECK(is_floating(dtype), "[dequantize] expected a floating dtype, got ", dtype);
  Tensor y = detail::fresh({outputs(), inputs}, dtype, device());
  detail::launch(device(), DequantizeArgs{view_of(*this), y.out()});
  return y;
}

QuantizedWeight quantize(const Tensor& weight, const QuantizeOptions& options) {
  detail::check_floating("quantize", weight);
  LOCKSTEP_CHECK(weight.rank() == 2 && weight.size(1) > 0,
                 "[quantize] expected a weight [outputs, inputs] with inputs, got ", weight);
  LOCKSTEP_CHECK(options.bits == 8 || options.bits == 4, "[quantize] expected 8 or 4 bits, got ", options.bits);
  const bool is_nibbles = options.bits == 4;
  const std::int64_t g = options.group_size;
  LOCKSTEP_CHECK(!is_nibbles || g == 32 || g == 64 || g == 128, "[quantize] expected groups of 32, 64 or 128, got ", g);
  const NoGrad no_grad;
  const Tensor given = weight.detach().to(Device::cpu()).contiguous(), from = given.to(DType::f32);
  const std::int64_t rows = weight.size(0), columns = weight.size(1);
  QuantizedWeight q;
  q.inputs = columns, q.group_size = is_nibbles ? g : columns;
  const std::int64_t groups = divided(columns, q.group_size), bytes = is_nibbles ? divided(columns, 2) : columns;
  q.codes = empty({rows, bytes}, {.dtype = is_nibbles ? DType::u8 : DType::i8, .device = Device::cpu()});
  q.scales = empty({rows, groups}, {.dtype = DType::f32, .device = Device::cpu()});
  if (rows > 0) {
    const float* const numbers = from.data<float>();
    std::uint8_t* const codes = is_nibbles ? q.codes.mutable_data<std::uint8_t>()
                                           : reinterpret_cast<std::uint8_t*>(q.codes.mutable_data<std::int8_t>());
    float* const scales = q.scales.mutable_data<float>();
    const std::int64_t piece = std::max<std::int64_t>(1, kPieceElements / columns);
    detail::run_pieces(divided(rows, piece), [&](std::int64_t i) {
      for (std::int64_t row = i * piece; row < std::min(rows, (i + 1) * piece); ++row) {
        const float* const at = numbers + row * columns;
        for (std::int64_t k = 0; k < columns; ++k)
          LOCKSTEP_CHECK(std::isfinite(at[k]), "[quantize] expected finite numbers in the range of f32 in the weight ",
                         weight, ", got ",
                         given.dtype() == DType::f64 ? given.data<double>()[row * columns + k] : double{at[k]},
                         " in row ", row, ", column ", k);
        if (is_nibbles)
          quantize_to_nibbles(at, columns, g, codes + row * bytes, scales + row * groups);
        else
          quantize_to_bytes(at, columns, reinterpret_cast<std::int8_t*>(codes) + row * bytes, scales + row);
      }
    });
  }
  return q.to(weight.device());
}

Tensor quantized_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias,
                        const QuantizedLinearOptions& options) {
  constexpr const char* kName = "quantized_linear";
  if (detail::narrows(x, bias)) [[unlikely]]
    return quantized_linear(detail::narrowed(x), weight, detail::narrowed(bias), options);
  detail::check_floating(kName, x);
  weight.check(kName);
  detail::check_same_device(kName, x, weight.codes);
  const std::int64_t outputs = weight.outputs(), inputs = weight.inputs;
  LOCKSTEP_CHECK(x.rank() > 0 && x.size(-1) == inputs, "[quantized_linear] expected an input [.., ", inputs, "], got ",
                 x);
  if (bias.defined()) {
    detail::check_floating_alike(kName, x, bias);
    LOCKSTEP_CHECK(bias.shape() == Shape{outputs}, "[quantized_linear] expected a bias [", outputs, "], got ", bias);
  }
  if (x.rank() != 2) {
    Shape shape = x.shape();
    shape[x.rank() - 1] = outputs;
    const std::int64_t rows = x.count() / inputs;
    return quantized_linear(x.reshape({rows, inputs}), weight, bias, options).reshape(shape);
  }
  const bool is_gelu = options.activation == Activation::gelu || options.activation == Activation::gelu_tanh;
  if (is_gelu && GradMode::enabled() && (x.requires_grad() || bias.requires_grad()))
    return detail::activated(quantized_linear(x, weight, bias, {.int8_activations = options.int8_activations}),
                             options.activation);
  Tensor y;
  if (x.dtype() == DType::f64 || kernels::table(x.device().type()).entry<QuantizedMatmulArgs>() == nullptr) {
    const NoGrad no_grad;
    y = linear(x, weight.dequantize(x.dtype()), bias, options.activation);
  } else {
    const Tensor in = x.contiguous(), added = bias.defined() ? bias.contiguous() : bias;
    y = detail::fresh({x.size(0), outputs}, x.dtype(), x.device());
    detail::launch(x.device(), QuantizedMatmulArgs{.x = in.in(),
                                                   .weight = view_of(weight),
                                                   .bias = added.in(),
                                                   .out = y.out(),
                                                   .activation = options.activation,
                                                   .round_x = options.int8_activations});
  }
  if (auto* node = record<QuantizedLinearNode>(y, x, bias)) {
    if (node->needs(0)) {
      node->codes.save(weight.codes), node->scales.save(weight.scales);
      node->inputs = inputs, node->group_size = weight.group_size;
    }
    node->rectified = options.activation == Activation::relu;
    if (node->rectified) node->y.save_output(y);
  }
  return y;
}

}  // namespace lockstep
