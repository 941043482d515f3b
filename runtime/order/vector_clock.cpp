#include "lockstep/runtime/order/vector_clock.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::detail {

void VectorClock::join(const VectorClock& other) {
  if (ticks_.empty()) ticks_ = other.ticks_;
  auto mine = ticks_.begin();
  bool missing = false;
  for (const auto& [actor, tick] : other.ticks_) {
    while (mine != ticks_.end() && mine->first < actor) ++mine;
    if (mine == ticks_.end() || mine->first != actor) {
      missing = true;
    } else {
      mine->second = std::max(mine->second, tick);
    }
  }
  if (!missing) return;
  std::vector<Tick> merged;
  merged.reserve(ticks_.size() + other.ticks_.size());
  std::merge(ticks_.begin(), ticks_.end(), other.ticks_.begin(), other.ticks_.end(), std::back_inserter(merged),
             [](const Tick& a, const Tick& b) { return a.first < b.first; });
  // Of the equals, ours came first and is the larger one.
  merged.erase(
      std::unique(merged.begin(), merged.end(), [](const Tick& a, const Tick& b) { return a.first == b.first; }),
      merged.end());
  ticks_ = std::move(merged);
}

}  // namespace lockstep::detail
