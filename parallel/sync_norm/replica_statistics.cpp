#include "lockstep/parallel/sync_norm/replica_statistics.h"

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep::detail {
namespace {

// A graph through all replicas, so that its backward goes from one to the other and none waits.
std::vector<Tensor> on_every_device(const std::vector<Tensor>& brought) {
  std::vector<Tensor> results;
  for (const Tensor& receiver : brought) {
    std::vector<Tensor> rows;
    for (const Tensor& row : brought) rows.push_back(row.to(receiver.device()));
    results.push_back(stack(rows));
  }
  return results;
}

}  // namespace

bool ReplicaStatistics::shares(Device) const { return ReplicaGroup::current() != nullptr; }

Tensor ReplicaStatistics::gather(const Tensor& mine) const {
  LOCKSTEP_CHECK(!CheckpointFrame::current(), "[BatchNorm] expected '", place_.name,
                 "' outside of checkpoint(), as its statistics are shared among replicas, which compute again one by "
                 "one");
  const ReplicaGroup::Membership& here = *ReplicaGroup::current();
  Tensor all = here.group->meet(place_, here.replica, mine, on_every_device);
  if (all.requires_grad())
    all.register_hook([name = place_.name](Tensor&) {
      if (const ReplicaGroup::Membership* inside = ReplicaGroup::current())
        fail<Error>("[BatchNorm] expected the backward through '", name,
                    "' after the replicas have returned, as its statistics are shared among them, got one in replica ",
                    inside->replica);
    });
  return all;
}

}  // namespace lockstep::detail
