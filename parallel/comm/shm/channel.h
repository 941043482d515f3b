// A channel: ranks that go through the same steps together, and the collectives made of such steps. One algorithm for
// threads, which reach each other's tensors, and for processes, whose messages go through slots piece by piece.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/shm/control_block.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

// One rank's end of a channel. Its calls are numbered from 1; call k waits for call k - 1, whichever thread runs it.
class Channel {
 public:
  // `members`: the ranks of the channel; this one is members[index].
  Channel(ControlBlock& control, ControlBlock::Region region, std::vector<int> members, int index);

  // Until the host threads of all members have come to the call; for ranks that share a device, before the collective
  // goes to its stream. Throws as perform does.
  void meet_hosts(const Collective& collective);
  // The first half of it, for who comes to several channels at once: says that this one has come.
  void come_to_hosts(const Collective& collective);
  // Carries the collective out with the other members; blocks. A send or recv is a channel of two: sender, receiver.
  // Throws CommError, and the control block has failed then; nobody touches this rank's memory any more.
  void perform(const Collective& collective);
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine);

  static constexpr std::size_t kMostExchangeBytes = std::size_t{64} << 20;

 private:
  struct Work;
  void begin(Work& work);
  void end(const Work& work);
  void arrive(Work& work);
  void meet(Work& work);  // arrive, and wait until everybody has
  // Until that counter of everybody's state is `least`.
  void wait_for_all(const Work& work, std::atomic<std::uint64_t> RankState::*counter, std::uint64_t least);
  void compare(const Work& work);
  // The member whose calls are not those of the others; -1 while none is known.
  int mismatched_member() const;
  [[noreturn]] void give_up(const Work& work, int rank, const std::string& text);
  [[noreturn]] void pass_on_failure(const Work& work);
  // Throws, unless everybody has come after all: has_come(member).
  template <class HasCome>
  void explain(const Work& work, HasCome&& has_come);

  void through_slots(Work& work);
  void directly(Work& work);
  void all_reduce_piece(Work& work, std::int64_t begin, std::int64_t length);
  void offer(const Work& work, std::int64_t begin, std::int64_t length);
  template <class Source>
  void take(const Work& work, std::int64_t begin, std::int64_t length, Source&& source);
  void combine_range(const Work& work);
  const std::byte* slot(int member) const;
  const WorkDescriptor& descriptor(const Work& work, int member) const;
  std::byte* own_slot() { return const_cast<std::byte*>(slot(index_)); }

  ControlBlock& control_;
  const ControlBlock::Region region_;
  const std::vector<int> members_;
  const int index_, count_;
  std::uint64_t step_ = 0;              // of this rank
  std::uint64_t piece_ = 0;             // buffers take turns: a piece uses the one that everybody is done with
  std::atomic<std::uint64_t> turn_{0};  // calls that are over
};

}  // namespace lockstep::detail
