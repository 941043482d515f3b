// The functions of neural networks: affine maps, convolution, pooling, normalisation, softmax, losses. The layers in
// nn/ hold the parameters and call these. See math_ops.h for what holds for all operations; here all floating tensors
// of a call must have one dtype.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/kernels/activation.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// ---- affine

// activation(x @ weight^T + bias): x [.., in], weight [out, in], bias [out] or undefined; result [.., out]. The product
// applies the activation before it stores an element, which saves reading and writing them all, and in f16 and bf16 a
// rounding; but gelu needs what went into it for its gradient, and is computed by itself where one is wanted.
LOCKSTEP_API Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                           Activation activation = Activation::none);

struct EmbeddingOptions {
  std::optional<std::int64_t> padding_index = std::nullopt;  // this row gets no gradient; negative counts from the end
  // Rows that are looked up and whose norm is larger are scaled down to it first: in the weight itself, outside any
  // graph. Of replicas, what home scales stays; the others scale their mirror, which the next refresh overwrites.
  std::optional<double> max_norm = std::nullopt;
  double norm_type = 2;             // p of that norm, above 0; infinity: the largest |x|
  bool scale_grad_by_freq = false;  // divides a row's gradient by how often the call uses the row; not with sparse
  // A backward gives a weight that is a leaf (a parameter) the rows that were used, as its sparse_grad(), and makes no
  // matrix of the weight's size. Where a matrix is needed it gets one all the same: under create_graph and in grad(),
  // for a weight with hooks, beside other uses of the weight, and for a weight that was computed. The row padding_index
  // may stand among the rows, with zeros.
  bool sparse = false;
};
// The rows of `weight` [rows, size] at `indices` (integers of any shape); result: the shape of `indices`, then size.
LOCKSTEP_API Tensor embedding(const Tensor& weight, const Tensor& indices, const EmbeddingOptions& options = {});

// ---- convolution and pooling. Images are [batch, channels, height, width]. Of images in channels_last, or with a
// weight that is, the result is channels_last; a gradient has the memory format of what it is the gradient of.

// Converts from one number for both.
struct Size2 {
  int height, width;
  constexpr Size2(int both) : height(both), width(both) {}  // NOLINT: converts like a number
  constexpr Size2(int rows, int columns) : height(rows), width(columns) {}
  friend constexpr bool operator==(Size2, Size2) = default;
};
LOCKSTEP_API std::string to_string(Size2 size);  // "3x5"

struct ConvGeometry {
  Size2 stride = 1, padding = 0, dilation = 1;
  int groups = 1;
};
// weight [out, in / groups, height, width], bias [out] or undefined.
LOCKSTEP_API Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                           const ConvGeometry& geometry = {});
struct ConvTransposeGeometry {
  Size2 stride = 1, padding = 0;
  Size2 output_padding = 0;  // further rows and columns of the result; less than the stride or the dilation
  Size2 dilation = 1;
  int groups = 1;
};
// The adjoint of conv2d in its input, as an operation of its own: weight [in, out / groups, height, width], bias [out]
// or undefined; a result of (size - 1) * stride - 2 padding + dilation * (kernel - 1) + output_padding + 1 rows and
// columns.
LOCKSTEP_API Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                                     const ConvTransposeGeometry& geometry = {});
// The adjoints of conv2d in its input and in its weight: bilinear themselves, and each other's derivatives. The first
// is what others call a transposed convolution.
LOCKSTEP_API Tensor conv2d_grad_input(const Tensor& gradient, const Tensor& weight, const Shape& input_shape,
                                      const ConvGeometry& geometry = {});
LOCKSTEP_API Tensor conv2d_grad_weight(const Tensor& gradient, const Tensor& x, const Shape& weight_shape,
                                       const ConvGeometry& geometry = {});

struct PoolGeometry {
  std::optional<Size2> stride = std::nullopt;  // default: the kernel
  Size2 padding = 0;                           // at most half the kernel
  Size2 dilation = 1;                          // max_pool2d only
  bool ceil_mode = false;                      // a last window that reaches beyond the padding counts too
  // avg_pool2d only: whether padding counts as zeros in the mean; what a sum is divided by, instead of a count.
  bool count_include_pad = true;
  std::optional<int> divisor = std::nullopt;
};
LOCKSTEP_API Tensor max_pool2d(const Tensor& x, Size2 kernel, const PoolGeometry& geometry = {});
LOCKSTEP_API Tensor avg_pool2d(const Tensor& x, Size2 kernel, const PoolGeometry& geometry = {});
// Means over `output` bins of nearly equal size: bin i is [floor(i * size / output), ceil((i + 1) * size / output)).
LOCKSTEP_API Tensor adaptive_avg_pool2d(const Tensor& x, Size2 output);

enum class InterpolateMode : std::uint8_t { nearest, bilinear };
struct Scale2 {
  double height, width;
  constexpr Scale2(double both) : height(both), width(both) {}  // NOLINT: converts like a number
  constexpr Scale2(double rows, double columns) : height(rows), width(columns) {}
};
struct InterpolateOptions {
  // One of the two: the size of the result, or what the sizes of x are multiplied by (and rounded down).
  std::optional<Size2> size = std::nullopt;
  std::optional<Scale2> scale_factor = std::nullopt;
  InterpolateMode mode = InterpolateMode::nearest;
  bool align_corners = false;  // bilinear: the centres of the corner pixels stay where they are, else the corners
};
LOCKSTEP_API Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

// ---- normalisation

struct BatchNormState {
  Tensor running_mean, running_var;  // [channels] or undefined; training writes into them, evaluation reads them
  bool training = true;
  double momentum = 0.1;  // of the new value
  double eps = 1e-5;
};
// Over all dimensions but the second: x [batch, channels, ..], weight and bias [channels] or undefined. Training
// normalises by the batch's own statistics, and so does evaluation without running ones. The activation is that of the
// result. A relu is computed with it, before it is rounded to 16 bits; so is its gradient with that of a norm by the
// batch's own statistics, which keeps no tensor between the two.
LOCKSTEP_API Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const BatchNormState& state,
                               Activation activation = Activation::none);
// Over the last dimensions, whose sizes are `normalized`; weight and bias of that shape, or undefined.
LOCKSTEP_API Tensor layer_norm(const Tensor& x, const Shape& normalized, const Tensor& weight = {},
                               const Tensor& bias = {}, double eps = 1e-5);

// Over the `groups` groups of neighbouring channels of x [batch, channels, ..]; weight and bias [channels] or
// undefined.
LOCKSTEP_API Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight = {}, const Tensor& bias = {},
                               double eps = 1e-5);

// x / sqrt(mean(x^2) + eps) over the last dimensions, whose sizes are `normalized`; weight of that shape, or undefined.
// Without eps: the epsilon of f64 for f64, else of f32.
LOCKSTEP_API Tensor rms_norm(const Tensor& x, const Shape& normalized, const Tensor& weight = {},
                             std::optional<double> eps = std::nullopt);

// ---- softmax and dropout

LOCKSTEP_API Tensor softmax(const Tensor& x, std::int64_t dim);
LOCKSTEP_API Tensor log_softmax(const Tensor& x, std::int64_t dim);

// In training: zeroes elements with probability p and divides the others by 1 - p, with a mask from this thread's
// random numbers (random.h). Else x itself.
LOCKSTEP_API Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

// ---- losses

enum class Reduction : std::uint8_t { mean, sum, none };

struct NllOptions {
  Tensor weight = {};                // [classes]: of each class; a mean divides by the weights' sum
  std::int64_t ignore_index = -100;  // targets of this value count for nothing
  Reduction reduction = Reduction::mean;
};
// log_probabilities [batch, classes, ..], targets (integers) [batch, ..].
LOCKSTEP_API Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, const NllOptions& options = {});

struct CrossEntropyOptions {
  Tensor weight = {};
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;  // in [0, 1]
};
// logits [batch, classes, ..]; targets: classes (integers) [batch, ..], or probabilities shaped like the logits. With
// classes nothing of the size of the logits is kept for the gradient but themselves.
LOCKSTEP_API Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

// Inputs and targets of one shape.
LOCKSTEP_API Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
LOCKSTEP_API Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
// -(t log s + (1 - t) log(1 - s)) with s = sigmoid(logits), computed without overflow.
LOCKSTEP_API Tensor bce_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction = Reduction::mean);
struct BceOptions {
  Tensor weight = {};      // of each element, broadcast to the shape of the logits
  Tensor pos_weight = {};  // of the term t log s, broadcast likewise
  Reduction reduction = Reduction::mean;
};
LOCKSTEP_API Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options);
// d^2 / (2 beta) where d = |input - target| is below beta, else d - beta / 2.
LOCKSTEP_API Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean,
                                   double beta = 1);

}  // namespace lockstep
