// Statistics of a batch that is divided among the ranks of a communicator. Private to the library.
#pragma once

#include <memory>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/shared_statistics.h"

namespace lockstep::detail {

// What the norms of one conversion have in common.
struct NormRanks {
  std::unique_ptr<Communicator> communicator;
  bool neighbours = false;  // other ranks are threads of this process on the same device
  std::int64_t norms = 0;
};

// Of one norm. Belongs to the thread of its rank, as the communicator does, and to its backwards. What a norm sends has
// a length that no other norm's has, so that ranks that are at different norms are found out as any others that call
// different collectives: before a byte moves, and without waiting for a device.
class RankStatistics final : public SharedStatistics, public std::enable_shared_from_this<RankStatistics> {
 public:
  // `index`: of the norm, below ranks->norms.
  RankStatistics(std::shared_ptr<const NormRanks> ranks, std::int64_t index)
      : ranks_(std::move(ranks)), index_(index) {}

  // Whether calls wait for other ranks.
  bool waits() const { return communicator().size() > 1; }
  bool shares(Device device) const override;
  // Every rank calls it, and its backward, whether its own input wants a gradient or not: so none waits in vain.
  Tensor gather(const Tensor& mine) const override;
  void abandon(const char* reason) const noexcept override;

 private:
  struct GatherNode;
  struct ReduceNode;
  // The two are each other's derivative. [..] to [ranks, ..], and the sum over ranks of each one's row for this rank.
  Tensor all_gather(const Tensor& mine) const;
  Tensor reduce_scatter(const Tensor& rows) const;
  std::int64_t sent_length(std::int64_t count) const;
  Tensor lengthened(const Tensor& rows, std::int64_t row_count) const;
  void check_thread() const;
  Communicator& communicator() const { return *ranks_->communicator; }

  const std::shared_ptr<const NormRanks> ranks_;
  const std::int64_t index_;
};

}  // namespace lockstep::detail
