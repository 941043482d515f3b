#include "lockstep/parallel/sync_norm/rank_statistics.h"

#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

// Part of a graph wherever gradients are recorded at all, so that the backwards of all ranks come here. Whether any
// rank wants a gradient is known on the devices alone.
Tensor anchored(const Tensor& x) {
  return GradMode::enabled() && !x.requires_grad() ? x.detach().set_requires_grad() : x;
}

}  // namespace

struct RankStatistics::GatherNode final : NodeOf<1> {
  const char* name() const override { return "all_gather"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = statistics->reduce_scatter(grad_outputs[0]);
  }
  std::shared_ptr<const RankStatistics> statistics;
};

struct RankStatistics::ReduceNode final : NodeOf<1> {
  const char* name() const override { return "reduce_scatter"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = statistics->all_gather(grad_outputs[0]);
  }
  std::shared_ptr<const RankStatistics> statistics;
};

bool RankStatistics::shares(Device device) const {
  if (!waits()) return false;
  if (device == communicator().device() && !ReplicaGroup::current()) return true;
  // Of a module on several devices each has a thread of its own in the backward, and one communicator has one order.
  const std::string got = ReplicaGroup::current()
                              ? " in a replica beside others"
                              : ": place it on the communicator's device, or let each rank normalise by itself there "
                                "(revert_sync_batchnorm of that norm)";
  const std::string message = cat("[BatchNorm] expected an input on ", communicator().device(),
                                  ", where the ranks share its statistics, got one on ", device, got);
  abandon(message.c_str());
  throw InvalidArgument(message);
}

Tensor RankStatistics::gather(const Tensor& mine) const { return all_gather(mine); }

void RankStatistics::abandon(const char* reason) const noexcept {
  try {
    communicator().abort(reason);
  } catch (...) {  // no memory for the message: the others hear of it at their deadline
  }
}

// At least `count` elements: divided by the number of norms, the rest is the norm's index.
std::int64_t RankStatistics::sent_length(std::int64_t count) const {
  const std::int64_t beyond = (index_ - count) % ranks_->norms;
  return count + (beyond < 0 ? beyond + ranks_->norms : beyond);
}

// Rows [rows, ..] as they are sent: [rows, length], contiguous, without a graph.
Tensor RankStatistics::lengthened(const Tensor& rows, std::int64_t row_count) const {
  const NoGrad no_grad;
  const std::int64_t count = rows.count() / row_count;
  const Tensor flat = rows.detach().reshape({row_count, count});
  return pad(flat, 1, 0, sent_length(count) - count).contiguous();
}

Tensor RankStatistics::all_gather(const Tensor& mine) const {
  check_thread();
  const Tensor input = anchored(mine), sent = lengthened(input, 1);
  const std::int64_t size = communicator().size();
  Tensor received = fresh({size, sent.count()}, sent.dtype(), sent.device());
  communicator().all_gather(sent, received);
  Shape shape{size};
  for (const std::int64_t each : input.shape()) shape.push_back(each);
  Tensor output = received.narrow(1, 0, input.count()).reshape(shape);
  if (auto* node = record<GatherNode>(output, input)) node->statistics = shared_from_this();
  return output;
}

Tensor RankStatistics::reduce_scatter(const Tensor& rows) const {
  check_thread();
  const Tensor input = anchored(rows), sent = lengthened(input, communicator().size());
  Tensor received = fresh({sent.size(1)}, sent.dtype(), sent.device());
  communicator().reduce_scatter(sent, received);
  Shape shape;
  for (int d = 1; d < input.rank(); ++d) shape.push_back(input.shape()[d]);
  Tensor output = received.narrow(0, 0, element_count(shape)).reshape(shape);
  if (auto* node = record<ReduceNode>(output, input)) node->statistics = shared_from_this();
  return output;
}

// One thread runs the backwards of all ranks on a device whose graphs lie on several: there one would wait for another
// that comes after it.
void RankStatistics::check_thread() const {
  if (!ranks_->neighbours || !DeviceThread::current()) return;
  const std::string message =
      cat("[BatchNorm] expected a graph on ", communicator().device(),
          " alone, as several ranks of this process are there and share its statistics, got one on several devices: "
          "give each rank a device, or a process, of its own");
  abandon(message.c_str());
  throw Error(message);
}

}  // namespace lockstep::detail
