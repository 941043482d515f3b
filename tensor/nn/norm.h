// Normalisation layers. Parameters and buffers begin on cpu, in DefaultDType, with PyTorch's names.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/kernels/activation.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/nn/shared_statistics.h"

namespace lockstep {

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  // of the new value in the running statistics; none: their plain average so far
  bool affine = true;                    // with weight and bias
  bool track_running_stats = true;
};

// In training normalises each channel by the statistics of the batch and updates the running ones; in evaluation uses
// the running ones. weight, bias, running_mean, running_var [channels]; num_batches_tracked (i64, rank 0).
//
// Any floating input goes with any floating parameters and statistics: it is computed in the widest of their dtypes, at
// least in f32 where they differ, and has the input's.
//
// With shared statistics (convert_sync_batchnorm) the batch of a training is that of all members together. A piece may
// be empty then. A batch with fewer than two values per channel in all is normalised by what there is, and leaves the
// running statistics and num_batches_tracked alone.
class LOCKSTEP_API BatchNorm : public Module<BatchNorm> {
 public:
  // Throws InvalidArgument unless the rank of x is one of the layer's, and, in training, each channel has more than one
  // value.
  Tensor forward(const Tensor& x) const { return normalize(x, Activation::none); }
  // A call of the module and then the activation. A relu is computed with the norm (see batch_norm), unless the norm
  // has hooks, which see its result, or shares its statistics.
  Tensor activated(const Tensor& x, Activation activation) const;
  void members(Members& m) override;
  const BatchNormOptions& options() const { return options_; }

  // Null: statistics of each input by itself, as at first. Copies of the norm, deep ones too, share what it has when
  // they are made. Not while the norm is called.
  void share(std::shared_ptr<const SharedStatistics> statistics) { shared_ = std::move(statistics); }
  const std::shared_ptr<const SharedStatistics>& shared() const { return shared_; }

  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;

 protected:
  BatchNorm(const char* name, std::int64_t channels, const BatchNormOptions& options, int least_rank, int largest_rank);

 private:
  void check_rank(const Tensor& x) const;
  Tensor normalize(const Tensor& x, Activation activation) const;
  Tensor forward_shared(const Tensor& x) const;
  Tensor normalize_shared(const Tensor& x) const;

  const char* name_;
  BatchNormOptions options_;
  int least_rank_, largest_rank_;
  std::shared_ptr<const SharedStatistics> shared_;
};

// x [batch, channels] or [batch, channels, length].
class LOCKSTEP_API BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(std::int64_t channels, BatchNormOptions options = {})
      : BatchNorm("BatchNorm1d", channels, options, 2, 3) {}
};

// x [batch, channels, height, width].
class LOCKSTEP_API BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(std::int64_t channels, BatchNormOptions options = {})
      : BatchNorm("BatchNorm2d", channels, options, 4, 4) {}
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // with weight (and bias)
  bool bias = true;
};

// Normalises over the last dimensions, whose sizes are `normalized`; weight and bias of that shape.
class LOCKSTEP_API LayerNorm : public Module<LayerNorm> {
 public:
  explicit LayerNorm(const Shape& normalized, LayerNormOptions options = {});
  explicit LayerNorm(std::int64_t size, LayerNormOptions options = {}) : LayerNorm(Shape{size}, options) {}
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }

  Parameter weight, bias;

 private:
  Shape normalized_;
  double eps_;
};

struct RMSNormOptions {
  std::optional<double> eps = std::nullopt;  // none: the epsilon of f64 for f64, else of f32
  bool affine = true;                        // with weight
};

// Divides by the root of the mean square over the last dimensions, whose sizes are `normalized`; weight of that shape.
class LOCKSTEP_API RMSNorm : public Module<RMSNorm> {
 public:
  explicit RMSNorm(const Shape& normalized, RMSNormOptions options = {});
  explicit RMSNorm(std::int64_t size, RMSNormOptions options = {}) : RMSNorm(Shape{size}, options) {}
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight); }

  Parameter weight;

 private:
  Shape normalized_;
  std::optional<double> eps_;
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;  // with weight and bias
};

// Normalises each of `groups` groups of neighbouring channels of x [batch, channels, ..]; weight, bias [channels].
class LOCKSTEP_API GroupNorm : public Module<GroupNorm> {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, GroupNormOptions options = {});
  // Throws InvalidArgument unless x has so many channels.
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }

  Parameter weight, bias;

 private:
  std::int64_t groups_, channels_;
  double eps_;
};

}  // namespace lockstep
