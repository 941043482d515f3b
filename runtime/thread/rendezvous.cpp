#include "lockstep/runtime/thread/rendezvous.h"

#include <algorithm>
#include <iterator>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/waiting.h"

namespace lockstep {

Rendezvous::Rendezvous(int participants) : participants_(participants) {
  constexpr int kMost = 64 * static_cast<int>(std::size(decltype(present_){}));
  LOCKSTEP_CHECK(participants >= 1 && participants <= kMost, "[Rendezvous] expected from 1 to ", kMost,
                 " participants, got ", participants);
  forget_hand_overs(this);
}

void Rendezvous::arrive_and_wait(int participant, Deadline deadline) {
  LOCKSTEP_CHECK(participant >= 0 && participant < participants_, "[Rendezvous] expected a participant from 0 to ",
                 participants_ - 1, ", got ", participant);
  std::unique_lock lock(mutex_);
  if (aborted_) throw Error(reason_);
  std::uint64_t& word = present_[participant / 64];
  const std::uint64_t bit = std::uint64_t{1} << participant % 64;
  LOCKSTEP_CHECK(!(word & bit), "[Rendezvous] expected each participant once, got ", participant, " a second time");
  word |= bit;
  hand_over(this);
  if (++arrived_ == participants_) {
    arrived_ = 0;
    ++generation_;
    std::fill(std::begin(present_), std::end(present_), 0);
    take_over(this);
    lock.unlock();
    changed_.notify_all();
    return;
  }
  // Whoever was complete before an abort has arrived: the generation is asked first.
  const std::uint64_t mine = generation_;
  const bool over = detail::wait_until(changed_, lock, deadline, [&] { return generation_ != mine || aborted_; });
  if (generation_ != mine) {
    take_over(this);
    return;
  }
  if (over) throw Error(reason_);

  std::string missing;
  for (int i = 0; i < participants_; ++i) {
    if (!(present_[i / 64] >> i % 64 & 1)) missing += cat(missing.empty() ? "" : ", ", i);
  }
  aborted_ = true;
  reason_ = cat("[Rendezvous] expected ", participants_, " participants before the deadline, got ", arrived_,
                "; missing: ", missing);
  const std::string reason = reason_;
  lock.unlock();
  changed_.notify_all();
  throw TimeoutError(reason);
}

void Rendezvous::abort(std::string reason) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = std::move(reason);
  }
  changed_.notify_all();
}

bool Rendezvous::aborted() const {
  std::lock_guard lock(mutex_);
  return aborted_;
}

}  // namespace lockstep
