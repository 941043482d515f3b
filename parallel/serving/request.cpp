#include "lockstep/parallel/serving/request.h"

#include "lockstep/runtime/order/order.h"

namespace lockstep::detail {

ServingRequest::ServingRequest() { forget_hand_overs(this); }
ServingRequest::~ServingRequest() = default;

void ServingRequest::publish() noexcept {
  hand_over(this);
  {
    const std::lock_guard lock(mutex_);
    state_.store(State::published, std::memory_order_release);
    published_.notify_all();
  }
  call_back();
}

bool ServingRequest::ended_by(Deadline until) const {
  std::unique_lock lock(mutex_);
  const auto is_ready = [&] { return ready(); };
  if (until.never())
    published_.wait(lock, is_ready);
  else if (!published_.wait_until(lock, until.time(), is_ready))
    return false;
  lock.unlock();
  take_over(this);
  return true;
}

}  // namespace lockstep::detail
