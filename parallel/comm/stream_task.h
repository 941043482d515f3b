// A collective on its way through a stream of host devices.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/parallel/comm/collective.h"

namespace lockstep::detail {

// Calls rank->perform(call), of a collective or a batch of them. One that is dropped instead of run (the stream had
// failed before) calls rank->skip(call), which fails for all ranks: they would wait for it in vain.
template <class Rank, class Call = Collective>
class StreamTask {
 public:
  StreamTask(std::shared_ptr<Rank> rank, Call call) : rank_(std::move(rank)), call_(std::move(call)) {}
  StreamTask(StreamTask&&) noexcept = default;
  StreamTask(const StreamTask&) = delete;
  StreamTask& operator=(const StreamTask&) = delete;
  ~StreamTask() {
    if (rank_) rank_->skip(call_);
  }
  void operator()() {
    const std::shared_ptr<Rank> rank = std::move(rank_);
    rank->perform(call_);
  }

 private:
  std::shared_ptr<Rank> rank_;
  Call call_;
};

}  // namespace lockstep::detail
