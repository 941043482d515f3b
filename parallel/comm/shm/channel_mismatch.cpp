// Which member makes other calls than the others.
#include "lockstep/parallel/comm/shm/channel.h"

namespace lockstep::detail {

// Two ranks mismatch when one has made more collectives and fewer exchanges than the other: they wait for each other on
// two channels, which ranks that make the same calls in the same order never do. The fewer ones are at fault; of as
// many, those without rank 0.
int Channel::mismatched_member() const {
  if (count_ != control_.ranks()) return -1;  // a pair
  const RankState* const states = control_.host_region().states;
  const auto called = [&](int m) { return states[m].called.load(std::memory_order_seq_cst); };
  const std::uint64_t mine = called(index_);
  int with = 0, against = 0, first_with = -1, first_against = -1;
  for (int m = 0; m < count_; ++m) {
    const std::uint64_t theirs = m == index_ ? mine : called(m);
    const bool more_collectives = theirs >> 32 > mine >> 32, fewer_collectives = theirs >> 32 < mine >> 32;
    const std::uint64_t exchanges = theirs & 0xffffffff, my_exchanges = mine & 0xffffffff;
    if (theirs == mine) {
      if (with++ == 0) first_with = m;
    } else if ((more_collectives && exchanges < my_exchanges) || (fewer_collectives && exchanges > my_exchanges)) {
      if (against++ == 0) first_against = m;
    }
  }
  if (against == 0) return -1;
  if (2 * against > count_) return first_with;
  if (2 * with > count_) return first_against;
  if (with + against < count_) return -1;  // it is for the others to say
  return first_with == 0 ? first_against : first_with;
}

}  // namespace lockstep::detail
