// A collective on its way through a stream of host devices.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/parallel/comm/collective.h"

namespace lockstep::detail {

// Calls rank->perform(collective). One that is dropped instead of run (the stream had failed before) calls
// rank->skip(collective), which fails for all ranks: they would wait for it in vain.
template <class Rank>
class StreamTask {
 public:
  StreamTask(std::shared_ptr<Rank> rank, const Collective& collective)
      : rank_(std::move(rank)), collective_(collective) {}
  StreamTask(StreamTask&&) noexcept = default;
  StreamTask(const StreamTask&) = delete;
  StreamTask& operator=(const StreamTask&) = delete;
  ~StreamTask() {
    if (rank_) rank_->skip(collective_);
  }
  void operator()() {
    const std::shared_ptr<Rank> rank = std::move(rank_);
    rank->perform(collective_);
  }

 private:
  std::shared_ptr<Rank> rank_;
  Collective collective_;
};

}  // namespace lockstep::detail
