// What a DataParallel needs that does not depend on its module. Private to the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "lockstep/parallel/data_parallel_options.h"
#include "lockstep/parallel/replicas/prepared_replica.h"
#include "lockstep/parallel/replicas/replica_graphs.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/replica_transport.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

LOCKSTEP_API void check_options(const DataParallelOptions& options);
LOCKSTEP_API void check_function_options(const DataParallelOptions& options);
// Warns once when the devices differ by more than a quarter in memory, else in multiprocessors.
LOCKSTEP_API void check_balance(const std::vector<Device>& devices);
LOCKSTEP_API void prepare_devices(const std::vector<Device>& devices);
// Null for copies, and where there are no mirrors. Throws NotSupported and InvalidArgument where NCCL cannot be used.
LOCKSTEP_API std::shared_ptr<ReplicaTransport> make_transport(const DataParallelOptions& options);
LOCKSTEP_API std::shared_ptr<ReplicaGraphs> make_graphs(const DataParallelOptions& options);    // null: none
LOCKSTEP_API std::shared_ptr<ReplicaFolding> make_folding(const DataParallelOptions& options);  // null: not prepared
LOCKSTEP_API bool any_requires_grad(const ModuleSlots& slots);
[[noreturn]] LOCKSTEP_API void fail_piece_count(std::size_t inputs, std::size_t targets);
// The losses of the replicas, weighted by the sizes of their pieces, as one scalar on `device`.
LOCKSTEP_API Tensor weighted_sum(const std::vector<Tensor>& losses, const std::vector<std::int64_t>& sizes,
                                 Device device);

// The loss of a replica's output, computed where the output is.
template <class Loss>
struct LossOn {
  Device on;
  std::shared_ptr<const Loss> loss;
  Device device() const { return on; }
  template <class Output, class Targets>
  Tensor operator()(const Output& output, const Targets& targets) const {
    return std::apply([&](const auto&... target) { return (*loss)(output, target...); }, targets);
  }
};

}  // namespace lockstep::detail
