// What a collective of an MPI rank is made of. Private to the library.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/mpi/mpi_rank.h"
#include "lockstep/parallel/comm/odd_one_out.h"

namespace lockstep::detail {

constexpr std::int64_t kRoundBytes = 64 << 20;  // of a message that is reduced, at a time: what staging it costs

// One collective under way: its messages, and what becomes of them.
class MpiRank::Work {
 public:
  Work(MpiRank& mpi_rank, const Collective& of)
      : collective(of),
        print(fingerprint(of)),
        deadline(Deadline::after(of.timeout)),
        bytes_each(static_cast<std::int64_t>(size_of(of.dtype))),
        mpi_rank_(mpi_rank) {
    const bool pair = of.pairwise();
    tag = of.kind == Collective::Kind::exchange ? MpiTag::exchange : pair ? MpiTag::pair : MpiTag::collective;
    for (int m = 0; m < mpi_rank.size_; ++m)
      if (m != mpi_rank.rank_ && (!pair || m == of.peer)) others.push_back(m);
  }

  const Collective& collective;
  const Fingerprint print;
  const Deadline deadline;
  const std::int64_t bytes_each;  // of an element
  MpiTag tag;
  std::vector<int> others;

  std::byte* output(std::int64_t element) const {
    return static_cast<std::byte*>(collective.output) + element * bytes_each;
  }
  // Messages are only read from it, whatever MPI's types say.
  std::byte* input(std::int64_t element) const {
    return const_cast<std::byte*>(static_cast<const std::byte*>(collective.input)) + element * bytes_each;
  }
  void send(int member, const void* data, std::int64_t bytes) { add(true, member, const_cast<void*>(data), bytes); }
  void recv(int member, void* data, std::int64_t bytes) { add(false, member, data, bytes); }

  // Carries out what was added. Throws CommError.
  void transfer() {
    mpi_rank_.count(messages_);
    const auto result = mpi_rank_.engine_.transfer(mpi_rank_.group_, messages_, collective.sequence, deadline);
    messages_.clear();
    if (result.outcome == MpiEngine::Outcome::done) return;
    if (result.outcome == MpiEngine::Outcome::left)
      give_up(result.members[0], cat("rank ", result.members[0], " left before it came to ", to_string(print)));
    if (result.outcome == MpiEngine::Outcome::late) give_up_late(result.members);
    pass_on();
  }

  [[noreturn]] void give_up(int rank, const std::string& text) {
    mpi_rank_.engine_.fail(mpi_rank_.group_, {rank, text}, true);
    pass_on();
  }
  [[noreturn]] void give_up_late(const std::vector<int>& late) {
    mpi_rank_.engine_.silent(*mpi_rank_.group_, late);
    std::string names;
    for (const int m : late) names += cat(names.empty() ? "rank " : ", rank ", m);
    give_up(late.empty() ? mpi_rank_.rank_ : late[0],
            cat("expected every rank to come to ", to_string(print), " within ", collective.timeout.count(),
                " ms, got nothing from ", names));
  }
  [[noreturn]] void pass_on() {
    const MpiFailure failure = *mpi_rank_.engine_.failure(*mpi_rank_.group_);
    throw CommError(failure.rank, to_string(collective.kind), failure.text);
  }

  // All members' fingerprints, before anything else moves. A pair's two answer each other under tags of their own.
  void compare() {
    std::vector<Fingerprint> prints(static_cast<std::size_t>(mpi_rank_.size_), print);
    const MpiTag there = tag, back = tag == MpiTag::pair ? MpiTag::pair_answer : tag;
    const bool receives = collective.kind == Collective::Kind::recv;
    for (const int m : others) {
      tag = receives ? back : there;
      send(m, &print, sizeof print);
      tag = receives ? there : back;
      recv(m, &prints[static_cast<std::size_t>(m)], sizeof print);
    }
    tag = there;
    transfer();
    std::vector<int> all = others;
    all.push_back(mpi_rank_.rank_);
    std::sort(all.begin(), all.end());
    const auto print_of = [&](int member) {
      return prints[static_cast<std::size_t>(all[static_cast<std::size_t>(member)])];
    };
    const auto found =
        odd_one_out(static_cast<int>(all.size()), [&](int a, int b) { return same_call(print_of(a), print_of(b)); });
    if (!found) return;
    std::string text = "expected all ranks to make the same call, got ";
    for (const int m : all)
      text += cat(m == all[0] ? "" : "; ", "rank ", m, ": ", to_string(prints[static_cast<std::size_t>(m)]));
    give_up(all[static_cast<std::size_t>(found->odd)], text);
  }

 private:
  void add(bool send, int member, void* data, std::int64_t bytes) {
    if (bytes > 0) messages_.push_back({send, member, tag, data, static_cast<std::size_t>(bytes)});
  }
  MpiRank& mpi_rank_;
  std::vector<MpiMessage> messages_;
};

}  // namespace lockstep::detail
