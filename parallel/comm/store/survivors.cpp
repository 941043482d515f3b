// How ranks agree on who of them is left, in a store.
#include "lockstep/parallel/comm/survivors.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "lockstep/parallel/comm/ended_fellows.h"
#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

// How long nobody looks who has come: at first, and at most when it takes long.
constexpr Milliseconds kSlice{20}, kLongestSlice{160};

std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += cat(text.empty() ? "" : " ", rank);
  return text;
}

std::vector<int> ranks_in(const std::string& text) {
  std::vector<int> ranks;
  const char *at = text.data(), *const end = at + text.size();
  for (int rank = 0; at < end; ++at) {
    const auto [next, error] = std::from_chars(at, end, rank);
    if (error != std::errc()) break;
    ranks.push_back(rank);
    at = next;
  }
  return ranks;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// One roll call: what the ranks write into the store.
class Roll {
 public:
  Roll(const RollCall& call, std::uint64_t number, int rank, int size)
      : call_(call), prefix_(cat(call.prefix, "/shrink/")), number_(number), rank_(rank), size_(size) {}

  std::vector<int> agree(const std::vector<int>& exclude, Milliseconds timeout) {
    const Deadline deadline = Deadline::after(timeout);
    forget_those_left_out();
    call_.store->set(key("here", rank_), to_text(exclude));
    for (Milliseconds slice = kSlice;; slice = std::min(2 * slice, kLongestSlice)) {
      const bool last = deadline.passed();
      if (const auto members = come(last)) return in_list(decide(*members));
      try {
        return in_list(call_.store->get(members_key(number_), Deadline::after(std::min(slice, deadline.left()))));
      } catch (const TimeoutError&) {
      }
    }
  }

 private:
  std::string members_key(std::uint64_t number) const { return cat(prefix_, number, "/members"); }
  std::string key(const char* name, int rank) const { return cat(prefix_, number_, '/', name, '/', rank); }

  // Whom an earlier roll call has left out does not come back.
  void forget_those_left_out() {
    for (std::uint64_t earlier = 1; earlier < number_; ++earlier) {
      const std::optional<std::string> decided = call_.store->try_get(members_key(earlier));
      if (!decided) continue;
      in_list(*decided);
      const std::vector<int> members = ranks_in(*decided);
      for (int r = 0; r < size_; ++r)
        if (!contains(members, r)) {
          out_.insert(r);
          settled_.insert(r);
        }
    }
  }

  // Those that have come, when nobody need be waited for (any more).
  std::optional<std::vector<int>> come(bool deadline_over) {
    // Who is gone, first: a rank that comes after that and goes is noticed when the members make their communicator.
    const std::vector<int> gone = call_.gone();
    out_.insert(gone.begin(), gone.end());
    for (int r = 0; r < size_; ++r) {
      if (settled_.contains(r)) continue;
      const std::optional<std::string> its = call_.store->try_get(key("here", r));
      if (its || contains(gone, r)) settled_.insert(r);
      if (!its) continue;
      here_.insert(r);
      for (const int excluded : ranks_in(*its)) out_.insert(excluded);
    }
    std::vector<int> members;
    for (int r = 0; r < size_; ++r) {
      if (out_.contains(r)) continue;
      if (here_.contains(r))
        members.push_back(r);
      else if (!deadline_over)
        return std::nullopt;
    }
    return members;
  }

  // The first decision stays; returns it.
  std::string decide(const std::vector<int>& members) {
    // Nobody may be left when all exclude each other: the list must not be mistaken for an absent one.
    return call_.store->compare_set(members_key(number_), "", members.empty() ? "-" : to_text(members));
  }

  std::vector<int> in_list(const std::string& decided) const {
    std::vector<int> members = ranks_in(decided);
    if (!contains(members, rank_))
      throw CommError(rank_, "shrink",
                      cat("rank ", rank_, " was left out: the ranks that go on are ", decided,
                          ", since it was excluded or came after they had agreed"));
    return members;
  }

  const RollCall& call_;
  const std::string prefix_;
  const std::uint64_t number_;
  const int rank_, size_;
  std::set<int> here_, out_;  // who has come, and who is not among the members whether it comes or not
  std::set<int> settled_;     // of whom the store will say no more: nobody asks again
};

}  // namespace

std::vector<int> agree_on_survivors(const RollCall& call, std::uint64_t number, int rank, int size,
                                    const std::vector<int>& exclude, Milliseconds timeout) {
  return Roll(call, number, rank, size).agree(exclude, timeout);
}

RollCall with_ended_ranks(RollCall call, std::vector<int> job_ranks) {
  if (job_ranks.empty()) return call;
  call.gone = [store = call.store, gone = std::move(call.gone), jobs = std::move(job_ranks)] {
    std::vector<int> all = gone();
    for (const EndedRank& ended : store->ended_ranks())
      if (const auto at = std::find(jobs.begin(), jobs.end(), ended.rank); at != jobs.end())
        all.push_back(static_cast<int>(at - jobs.begin()));
    return all;
  };
  return call;
}

}  // namespace lockstep::detail
