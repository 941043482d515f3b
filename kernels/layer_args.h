// The arguments of the table's entries (table.h) for layers beyond convolution, pooling and softmax: normalisation by
// groups, resampling of images, the loss of classes; and for order along a dimension: running sums and sorting.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/kernels/view.h"

namespace lockstep {

// x, y: [batch, groups, channels, length] contiguous, normalised by the statistics of each [channels, length]; weight,
// bias: [groups * channels] in the dtype of x, or absent. Layer normalisation has one group and the length 1. In f32,
// where the table says that its kernels take them so, all of them may be images in channels_last: [batch, length,
// groups, channels] in memory.
struct GroupNormArgs {
  In x, weight, bias;
  Out y;
  Out mean, inv_std;  // [batch, groups] or absent: what was used; f64 for f64, else f32
  double eps;
  static constexpr const char* kName = "group_norm";
  void views(auto&& f) const { f(x), f(weight), f(bias), f(y), f(mean), f(inv_std); }
};
struct GroupNormGradArgs {
  In dy, x, weight, mean, inv_std;
  Out dx, dweight, dbias;  // dweight, dbias may be absent
  static constexpr const char* kName = "group_norm_grad";
  void views(auto&& f) const { f(dy), f(x), f(weight), f(mean), f(inv_std), f(dx), f(dweight), f(dbias); }
};

// x, y: [rows, size] contiguous, divided by the square root of the mean of the squares of their row plus eps; weight:
// [size] in the dtype of x, or absent.
struct RmsNormArgs {
  In x, weight;
  Out y;
  Out inv_rms;  // [rows] or absent: what x was multiplied with; f64 for f64, else f32
  double eps;
  static constexpr const char* kName = "rms_norm";
  void views(auto&& f) const { f(x), f(weight), f(y), f(inv_rms); }
};
struct RmsNormGradArgs {
  In dy, x, weight, inv_rms;
  Out dx, dweight;  // dweight may be absent
  static constexpr const char* kName = "rms_norm_grad";
  void views(auto&& f) const { f(dy), f(x), f(weight), f(inv_rms), f(dx), f(dweight); }
};

// Resampling rows and columns of [batch, channels, height, width] by a linear map; resample.h has the maps. x and y are
// both contiguous, or, where the table says that its kernels take them so, both channels_last.
enum class ResampleKind : std::uint8_t {
  nearest,
  bilinear,
  average,  // over bins of nearly equal size that cover the source
};
struct Resample2dArgs {
  In x;
  Out y;
  ResampleKind kind;
  std::array<double, 2> step{};  // nearest and bilinear: rows and columns of the source per one of the result
  bool align_corners = false;    // bilinear
  bool adjoint = false;          // the transposed map: x has the sizes of the result, y those of the source
  static constexpr const char* kName = "resample2d";
  void views(auto&& f) const { f(x), f(y); }
};

// The loss of classes given scores: x [outer, classes, inner] contiguous, targets (i64) [outer, inner]. For a target t
// that is not ignored, with w the weights (absent: ones) and s the smoothing:
//   loss = (1 - s) w[t] (log_sum - x[t]) + s / classes * sum over c of w[c] (log_sum - x[c])
// An ignored one has loss and target_weight 0. A target out of range throws as an index does.
struct CrossEntropyArgs {
  In x, targets, weight;    // weight: [classes] in the dtype of x, or absent
  Out loss, target_weight;  // [outer, inner], f64 for f64, else f32; target_weight is w[t]
  Out log_sum;              // [2, outer, inner], as loss: the logarithm of the sum of the exponentials of x, and what
                            // rounding took from it
  std::int64_t ignore_index;
  double label_smoothing;
  static constexpr const char* kName = "cross_entropy";
  void views(auto&& f) const { f(x), f(targets), f(weight), f(loss), f(target_weight), f(log_sum); }
};
struct CrossEntropyGradArgs {
  In dloss, x, targets, weight, target_weight, log_sum;  // dloss: as loss
  Out dx;
  std::int64_t ignore_index;
  double label_smoothing;
  static constexpr const char* kName = "cross_entropy_grad";
  void views(auto&& f) const { f(dloss), f(x), f(targets), f(weight), f(target_weight), f(log_sum), f(dx); }
};

// y[o, i, j] = the sum of x[o, 0 … i, j], or of x[o, i …, j]: [outer, size, inner] contiguous, floating or i64.
// Floating dtypes add in double.
struct CumsumArgs {
  In x;
  Out y;
  bool reverse;
  static constexpr const char* kName = "cumsum";
  void views(auto&& f) const { f(x), f(y); }
};

// indices[o, 0 … k, j] (i64): the positions along `size` of the k first elements in ascending or descending order;
// equal ones in the order of their positions, NaN greater than all numbers. x: [outer, size, inner], contiguous; k <=
// size.
struct ArgsortArgs {
  In x;
  Out indices;
  bool descending;
  static constexpr const char* kName = "argsort";
  void views(auto&& f) const { f(x), f(indices); }
};

}  // namespace lockstep
