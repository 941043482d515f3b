// How DistributedDataParallel works, and what it tells of its work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

// The module keeps its parameters and buffers as they are: the optimizer, state dicts and files see those. What is left
// out stays in the dtype of the module, but reductions, which are then in that of the parameters' copies.
struct DdpMixedPrecision {
  // Of floating parameters in forward and backward, and of floating arguments. Outputs are what the module makes of it.
  std::optional<DType> param_dtype = std::nullopt;
  // In which gradients are summed over the ranks. They are divided before they are rounded to it; a communication hook
  // sees them rounded and not divided, unless it begins with GradBucket::divide(), as those that average do.
  std::optional<DType> reduce_dtype = std::nullopt;
  std::optional<DType> buffer_dtype = std::nullopt;  // of floating buffers in forward and backward

  bool on() const { return param_dtype || reduce_dtype || buffer_dtype; }
  // In which gradients of parameters of `dtype` are reduced.
  DType reduces(DType dtype) const { return reduce_dtype.value_or(param_dtype.value_or(dtype)); }
};

// As bucket_cap_mb: the library chooses, by the bytes of all gradients, the numbers of ranks and hosts and what joins
// them, never by a timing; rank 0's choice is that of all. logging_data() has it; docs/distributed.md says how it is
// made.
inline constexpr double kAutoBucketCap = -1;

// Ranks may differ in `gradient_as_bucket_view`, `timeout`, and those dtypes of `mixed_precision` in which nothing is
// reduced.
struct DistributedDataParallelOptions {
  // Limits of the buckets in MiB, of the first one (small, so that communication starts early) and of the others. A
  // bucket is closed when it has reached its limit.
  double bucket_cap_mb = 25, first_bucket_mb = 1;
  // Rank 0's, before every training forward whose gradients are reduced. In a join those of the largest rank that has
  // inputs, also while all have.
  bool broadcast_buffers = true;
  bool find_unused_parameters = false;   // some parameters may get no gradient: the graph is searched in each backward
  bool gradient_as_bucket_view = true;   // grad is a part of its bucket; false: a tensor of its own, and a copy
  bool static_graph = false;             // the same parameters are used, as often, in every iteration
  bool init_sync = true;                 // verify the model across ranks and take over rank 0's at construction
  std::vector<std::string> ignore = {};  // names of parameters and buffers that are left alone
  int backwards_per_forward = 1;         // gradients are reduced by the last of so many backwards
  std::optional<Milliseconds> timeout = std::nullopt;  // of the collectives; default: the communicator's
  DdpMixedPrecision mixed_precision = {};              // not with sparse gradients
};

// Figures under the names that PyTorch's logger has. Times are host clock in nanoseconds, of the last reduced iteration
// that was measured (the first ten, then every hundredth) and averages over those.
struct DdpLoggingData {
  // From construction on.
  int world_size = 0, rank = 0;
  std::string backend_name;
  std::int64_t num_parameter_tensors = 0;
  std::uint64_t total_parameter_size_bytes = 0;
  std::vector<DType> dtypes;
  std::vector<std::uint64_t> bucket_sizes;  // bytes of the gradients in each
  std::uint64_t bucket_cap_bytes = 0;
  bool broadcast_buffers = false, find_unused_parameters = false, gradient_as_bucket_view = false, static_graph = false;
  std::string comm_hook;  // its name; "" without one
  // As it goes.
  std::uint64_t iteration = 0;      // reductions so far
  bool join_uneven_inputs = false;  // inside a join
  bool has_rebuilt_buckets = false;
  std::vector<std::uint64_t> rebuilt_bucket_sizes;  // bytes
  std::vector<std::vector<int>> rebuilt_per_bucket_param_indices;
  std::vector<int> prev_iteration_grad_ready_order_indices;
  std::uint64_t unused_parameter_size = 0;  // bytes, of the last iteration
  bool can_set_static_graph = true;         // the same parameters were unused in every iteration so far
  std::int64_t forward_compute_time = 0, backward_compute_time = 0;
  std::int64_t backward_comm_time = 0, backward_compute_comm_overlap_time = 0;
  std::int64_t avg_forward_compute_time = 0, avg_backward_compute_time = 0;
  std::int64_t avg_backward_comm_time = 0, avg_backward_compute_comm_overlap_time = 0;
};

}  // namespace lockstep
