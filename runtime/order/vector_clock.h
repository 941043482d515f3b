// Vector clocks (Lamport 1978, Mattern 1989): how far an actor (a stream or a host thread) knows every actor to be.
// Private to the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::detail {

using ActorId = std::uint32_t;

class VectorClock {
 public:
  std::uint64_t operator[](ActorId actor) const {
    const auto found = find(actor);
    return found != ticks_.end() && found->first == actor ? found->second : 0;
  }
  // Never goes back.
  void raise(ActorId actor, std::uint64_t tick) {
    const auto found = ticks_.begin() + (find(actor) - ticks_.begin());
    if (found == ticks_.end() || found->first != actor) {
      ticks_.insert(found, {actor, tick});
    } else {
      found->second = std::max(found->second, tick);
    }
  }
  void join(const VectorClock& other);
  // Whether it is as far as `other` with everybody.
  bool covers(const VectorClock& other) const {
    auto mine = ticks_.begin();
    for (const auto& [actor, tick] : other.ticks_) {
      while (mine != ticks_.end() && mine->first < actor) ++mine;
      if (mine == ticks_.end() || mine->first != actor || mine->second < tick) return false;
    }
    return true;
  }
  bool empty() const { return ticks_.empty(); }

 private:
  using Tick = std::pair<ActorId, std::uint64_t>;
  std::vector<Tick>::const_iterator find(ActorId actor) const {
    return std::lower_bound(ticks_.begin(), ticks_.end(), actor,
                            [](const Tick& tick, ActorId wanted) { return tick.first < wanted; });
  }
  std::vector<Tick> ticks_;  // sorted by actor
};

}  // namespace lockstep::detail
