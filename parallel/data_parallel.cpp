#include "lockstep/parallel/data_parallel.h"

#include <algorithm>

#include "lockstep/kernels/api.h"
#include "lockstep/parallel/comm/nccl/nccl_transport.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep::detail {
namespace {

PhaseStats difference(const TransferStats& now, const TransferStats& before) {
  return {now.bytes - before.bytes, now.nanoseconds - before.nanoseconds};
}

void accumulate(PhaseStats& total, const PhaseStats& phase) {
  total.bytes += phase.bytes;
  total.nanoseconds += phase.nanoseconds;
}

// Warns when the smallest amount is less than three quarters of the largest.
template <class Amount>
bool warn_if_unequal(const std::vector<Device>& devices, const char* what, Amount amount) {
  const auto fewer = [&](Device a, Device b) { return amount(a) < amount(b); };
  const auto least = std::min_element(devices.begin(), devices.end(), fewer);
  const auto most = std::max_element(devices.begin(), devices.end(), fewer);
  if (static_cast<double>(amount(*least)) >= 0.75 * static_cast<double>(amount(*most))) return false;
  log(LogLevel::warning,
      cat("[DataParallel] the devices are unequal: ", *least, " has less than 75% of the ", what, " of ", *most,
          ", and the slowest replica sets the pace; consider leaving ", *least, " out, or ScatterPolicy::weights"));
  return true;
}

}  // namespace

PhaseTimer::PhaseTimer(const char* first) : time_(Clock::now()), bytes_(moved_bytes()) { span_.emplace(first); }

void PhaseTimer::finish(PhaseStats& phase, const char* next) {
  span_.reset();
  if (next) span_.emplace(next);
  const auto now = Clock::now();
  const std::uint64_t bytes = moved_bytes();
  phase.nanoseconds +=
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now - time_).count());
  phase.bytes += bytes - bytes_;
  time_ = now;
  bytes_ = bytes;
}

void StatsRecorder::add(const CallStats& call, const ModuleSlots& slots) {
  const TransferStats reduced = slots.reduced();
  const std::lock_guard lock(mutex_);
  if (stats_.calls++ == 0) reduced_at_first_ = reduced;
  reduced_at_last_ = reduced;
  stats_.last = call;
  accumulate(stats_.total.scatter, call.scatter);
  accumulate(stats_.total.replicate, call.replicate);
  accumulate(stats_.total.apply, call.apply);
  accumulate(stats_.total.gather, call.gather);
}

void StatsRecorder::reset() {
  const std::lock_guard lock(mutex_);
  stats_ = {};
}

DataParallelStats StatsRecorder::read(const ModuleSlots& slots, const ReplicaGraphs* graphs) const {
  const std::lock_guard lock(mutex_);
  DataParallelStats stats = stats_;
  if (graphs) stats.graphs = graphs->stats();
  if (stats.calls > 0) {
    const TransferStats reduced = slots.reduced();
    stats.last.reduce = difference(reduced, reduced_at_last_);
    stats.total.reduce = difference(reduced, reduced_at_first_);
  }
  return stats;
}

void check_options(const DataParallelOptions& options) {
  if (!options.devices.empty()) check_devices("DataParallel", options.devices);
  if (options.output_device) ordinal(*options.output_device);
  LOCKSTEP_CHECK(options.timeout.count() > 0, "[DataParallel] expected a positive timeout, got ",
                 options.timeout.count(), " ms");
  LOCKSTEP_CHECK(options.graphs >= 0, "[DataParallel] expected a number of graphs, or 0 for none, got ",
                 options.graphs);
  LOCKSTEP_CHECK(options.graphs == 0 || !options.prepared, "[DataParallel] expected graphs or a prepared module, got ",
                 options.graphs, " graphs and prepared = true");
}

void check_function_options(const DataParallelOptions& options) {
  LOCKSTEP_CHECK(
      !options.prepared,
      "[data_parallel] expected options for a single call, got prepared = true: what a call folds is kept by a "
      "DataParallel");
}

// What kernels need is made before the first step: in the middle of one it might wait for what is in flight.
void prepare_devices(const std::vector<Device>& devices) {
  for (const Device device : devices) kernels::prepare(device);
}

std::shared_ptr<ReplicaTransport> make_transport(const DataParallelOptions& options) {
  if (options.transport == Transport::copies || options.devices.size() < 2) return nullptr;
  return make_nccl_transport(options.devices, options.timeout);
}

std::shared_ptr<ReplicaGraphs> make_graphs(const DataParallelOptions& options) {
  return options.graphs > 0 ? std::make_shared<ReplicaGraphs>(options.graphs) : nullptr;
}

std::shared_ptr<ReplicaFolding> make_folding(const DataParallelOptions& options) {
  return options.prepared ? std::make_shared<ReplicaFolding>() : nullptr;
}

void check_balance(const std::vector<Device>& devices) {
  if (devices.size() < 2) return;
  if (warn_if_unequal(devices, "memory", [](Device d) { return properties(d).total_memory_bytes; })) return;
  warn_if_unequal(devices, "multiprocessors", [](Device d) { return properties(d).multiprocessors; });
}

bool any_requires_grad(const ModuleSlots& slots) {
  const auto wanted = [](const Parameter& parameter) { return parameter.requires_grad(); };
  return std::any_of(slots.parameters().begin(), slots.parameters().end(), wanted) ||
         std::any_of(slots.buffers().begin(), slots.buffers().end(), wanted);
}

void fail_piece_count(std::size_t inputs, std::size_t targets) {
  fail<InvalidArgument>("[reduce_with] expected targets that give as many pieces as the inputs, got ", targets,
                        " pieces of the targets for ", inputs, " of the inputs");
}

void check_piece_size(std::size_t piece, std::int64_t inputs, std::int64_t targets) {
  LOCKSTEP_CHECK(inputs == targets, "[reduce_with] expected targets divided as the inputs are, got ", targets,
                 " of the targets for ", inputs, " of the inputs in piece ", piece,
                 ": put the inputs into containers as well");
}

Tensor weighted_sum(const std::vector<Tensor>& losses, const std::vector<std::int64_t>& sizes, Device device) {
  for (std::size_t i = 0; i < losses.size(); ++i) {
    LOCKSTEP_CHECK(losses[i].defined() && losses[i].count() == 1 && is_floating(losses[i].dtype()),
                   "[reduce_with] expected a loss with one element from every replica, got ", losses[i].describe(),
                   " from replica ", i);
  }
  std::int64_t count = 0;
  for (const std::int64_t size : sizes) count += size;
  // In replica order, so that the same devices give the same bits.
  Tensor sum;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const Tensor loss = losses[i].reshape({}).to(device);
    const double weight = count > 0 ? static_cast<double>(sizes[i]) / static_cast<double>(count)
                                    : 1.0 / static_cast<double>(losses.size());
    const Tensor share = losses.size() == 1 ? loss : loss * weight;
    sum = sum.defined() ? sum + share : share;
  }
  return sum;
}

}  // namespace lockstep::detail
