// A collective on its way through a stream of host devices.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/parallel/comm/collective.h"

namespace lockstep::detail {

// Calls member->perform(collective). One that is dropped instead of run (the stream had failed before) calls
// member->skip(collective), which fails for all ranks: they would wait for it in vain.
template <class Member>
class StreamTask {
 public:
  StreamTask(std::shared_ptr<Member> member, const Collective& collective)
      : member_(std::move(member)), collective_(collective) {}
  StreamTask(StreamTask&&) noexcept = default;
  StreamTask(const StreamTask&) = delete;
  StreamTask& operator=(const StreamTask&) = delete;
  ~StreamTask() {
    if (member_) member_->skip(collective_);
  }
  void operator()() {
    const std::shared_ptr<Member> member = std::move(member_);
    member->perform(collective_);
  }

 private:
  std::shared_ptr<Member> member_;
  Collective collective_;
};

}  // namespace lockstep::detail
