// PowerSGD: gradients of matrices travel as the product of two thin ones (Vogels et al., "PowerSGD: Practical Low-Rank
// Gradient Compression for Distributed Optimization", NeurIPS 2019).
//
//   PowerSgd compression({.rank = 2, .start_iteration = 100});
//   net.register_comm_hook(compression.hook());
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/parallel/ddp/comm_hook.h"
#include "lockstep/parallel/ddp/hooks/one_module.h"

namespace lockstep {

// PyTorch's names where it has them.
struct PowerSgdOptions {
  std::int64_t rank = 1;                // columns of the thin matrices, at most
  std::int64_t start_iteration = 1000;  // until then gradients are averaged; any from 0 on
  // A matrix is compressed where that makes it smaller by more than this: (rows + columns) * rank * rate < elements. 0:
  // every one.
  double min_compression_rate = 2;
  bool use_error_feedback = true;        // what compression loses is added to the next gradient
  bool warm_start = true;                // begin with the last Q, instead of random numbers
  double orthogonalization_epsilon = 0;  // added to the lengths that columns are divided by
  std::uint64_t seed = 0;                // of those random numbers; the thread's own are left alone
};

// A gradient of rank 2 or more counts as a matrix [first dimension, all others]; vectors, and what is not worth it, are
// averaged in their dtype. A step takes three collectives per bucket (of 32 MiB at most, else several): of the averaged
// gradients, of P = M Q, and of Q = M^T P with P orthonormal; then M = P Q^T, the same bits on every rank. P and Q of
// 16-bit gradients are computed, and sent, in f32.
//
// Error and Q belong to parameters, by name: the rebuild of buckets after the first iteration changes nothing, so that
// compression may start at once, with error feedback and warm start too. Columns that are zero, or depend on those
// before them, stay zero instead of becoming noise or NaN; their Q is kept for the next time. Where no rank uses a
// parameter (find_unused_parameters), its error stays what it was, as its gradient does.
//
// In a join, error feedback needs the initial number of ranks as the divisor (JoinOptions): what a rank leaves when it
// runs out would count for more than it was. Else it is an Error of the first backward.
class LOCKSTEP_API PowerSgd {
 public:
  // Throws InvalidArgument for a rank below 1, a start, rate or epsilon below 0.
  explicit PowerSgd(const PowerSgdOptions& options = {});
  PowerSgd(const PowerSgd&) = delete;
  PowerSgd& operator=(const PowerSgd&) = delete;

  // For one module, whose trained parameters stay the same: an Error of the backward that brings another parameter.
  // This object outlives its backwards. Another one may go on with its state.
  CommHook hook();
  const PowerSgdOptions& options() const { return options_; }
  std::int64_t iteration() const;  // iterations that are over

  // "iteration", "error.<parameter>" and "q.<parameter>", on cpu; blocks. Errors are this rank's own: each rank saves a
  // file of its own to go on with the same bits. To be called between iterations, as load_state_dict.
  std::vector<NamedTensor> state_dict() const;
  // Throws InvalidArgument, before anything is changed, for other names and an iteration below 0. A shape that does not
  // fit its parameter is an error of the next backward.
  void load_state_dict(const std::vector<NamedTensor>& state);

 private:
  struct Memory {
    Tensor error;         // like the gradient; f32 for 16 bits
    Tensor error_before;  // in whose place `error` came, where nobody may have taken the last result
    Tensor q;             // [rank, columns]: transposed
    std::shared_ptr<const std::vector<bool>> lost;  // of the last bucket, and the place in it
    std::size_t slot = 0;

    const Tensor& last_error() const { return lost && (*lost)[slot] ? error_before : error; }
  };
  struct Matrix;
  Work reduce(GradBucket& bucket);
  void compress(GradBucket& bucket);
  bool worth_it(const Tensor& gradient) const;
  Matrix take(const GradBucket& bucket, std::size_t slot);
  Tensor random_q(const std::string& name, std::int64_t rank, const Tensor& matrix) const;

  const PowerSgdOptions options_;
  std::int64_t iteration_ = 0;
  std::map<std::string, Memory> memory_;  // by parameter
  detail::OneModule module_;
};

}  // namespace lockstep
