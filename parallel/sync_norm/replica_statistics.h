// Statistics of a batch that is divided among the replicas of a call. Private to the library.
#pragma once

#include <string>
#include <utility>

#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/tensor/nn/shared_statistics.h"

namespace lockstep::detail {

// Of one norm. May be used by several calls at the same time.
class ReplicaStatistics final : public SharedStatistics {
 public:
  explicit ReplicaStatistics(std::string name) : place_{"BatchNorm", std::move(name)} {}

  bool shares(Device device) const override;
  Tensor gather(const Tensor& mine) const override;
  void abandon(const char*) const noexcept override {}  // the replica throws, of which its group hears

 private:
  const ReplicaGroup::Place place_;
};

}  // namespace lockstep::detail
