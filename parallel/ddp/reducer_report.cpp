// What the reducer says: of errors, and of its work.
#include <algorithm>

#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::detail {

std::string Reducer::list(const std::function<bool(const Variable&)>& which) const {
  std::string text;
  std::size_t shown = 0, left = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!which(variables_[i])) continue;
    if (shown == 20) {
      ++left;
      continue;
    }
    text += cat(shown++ == 0 ? "" : ", ", "'", variables_[i].name, "' (number ", i, ")");
  }
  return left == 0 ? text : cat(text, " and ", left, " more");
}

void Reducer::fail(const std::string& message) {
  started_ = false;
  communicator_.abort(message);
  throw Error(message);
}

std::vector<std::uint64_t> Reducer::bucket_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const Bucket& bucket : buckets_) bytes.push_back(bucket.bytes());
  return bytes;
}

void Reducer::report(DdpLoggingData& data) {
  const std::lock_guard lock(mutex_);
  data.world_size = communicator_.size();
  data.rank = communicator_.rank();
  data.backend_name = communicator_.backend();
  data.num_parameter_tensors = static_cast<std::int64_t>(variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const BucketEntry& entry = variables_[i].entry;
    data.total_parameter_size_bytes += entry.bytes;
    if (std::find(data.dtypes.begin(), data.dtypes.end(), entry.dtype) == data.dtypes.end())
      data.dtypes.push_back(entry.dtype);
    if (i < last_unused_.size() && last_unused_[i]) data.unused_parameter_size += entry.bytes;
  }
  data.bucket_sizes = bucket_bytes();
  data.bucket_cap_bytes = limits_.others;
  data.broadcast_buffers = options_.broadcast_buffers;
  data.find_unused_parameters = options_.find_unused_parameters;
  data.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  data.static_graph = options_.static_graph;
  data.comm_hook = hook_.name;
  data.iteration = reductions_;
  data.has_rebuilt_buckets = layout_changed_;
  if (layout_changed_) {
    data.rebuilt_bucket_sizes = data.bucket_sizes;
    for (const Bucket& bucket : buckets_) {
      auto& numbers = data.rebuilt_per_bucket_param_indices.emplace_back();
      for (const Bucket::Slot& slot : bucket.slots()) numbers.push_back(slot.parameter);
    }
  }
  data.prev_iteration_grad_ready_order_indices = last_order_;
  data.can_set_static_graph = same_unused_;
  timeline_.report(data);
}

}  // namespace lockstep::detail
