// Whom an NCCL rank blames for what is late or lost: it asks the others where they are.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <thread>

#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/parallel/comm/odd_one_out.h"

namespace lockstep::nccl {
namespace {

// How long the others have to say where they are, once one is late.
constexpr Milliseconds kStateTime{2'000};
constexpr const char* kState = "state";

}  // namespace

// What a rank says when it is asked where it is.
struct Rank::State {
  std::int64_t request = 0;     // the last that it has heard of
  std::uint64_t number = 0;     // of its last collective
  std::string last, waits_for;  // its last call; the first that is not through
};

// Where are the others? True when all have said so, or had the time to. By one thread at a time: see polling_.
bool Rank::others_asked() {
  const Clock::time_point now = Clock::now();
  if (!states_requested_at_) {
    states_requested_at_ = now;
    request_ = oob_.request_states();
    publish_state(request_);
  }
  return silent_rank() == oob_.rank() || now >= *states_requested_at_ + kStateTime;
}

// The first that has been asked and does not say where it is; none: this one.
int Rank::silent_rank() {
  for (int r = 0; r < oob_.size(); ++r)
    if (r != oob_.rank() && !state_of(r)) return r;
  return oob_.rank();
}

// The same for a thread that may wait. Throws what another rank has found out meanwhile.
int Rank::find_silent_rank() {
  for (;; std::this_thread::sleep_for(Milliseconds(1))) {
    if (const std::optional<CommError> error = failure_of_others()) throw *error;
    const std::lock_guard polling(polling_);
    if (others_asked()) return silent_rank();
  }
}

CommError Rank::blame(const std::string& collective, int silent, const std::string& text) const {
  if (silent == oob_.rank()) return CommError(silent, collective, text);
  return CommError(silent, collective,
                   cat("it says nothing any more, and NCCL says to rank ", oob_.rank(), ": ", text));
}

// What a rank has answered to this rank's request, or a later one; nothing: it is silent.
std::optional<Rank::State> Rank::state_of(int rank) {
  const std::optional<std::string> text = oob_.peek(kState, rank);
  if (!text) return std::nullopt;
  State state;
  const char* at = text->c_str();
  char* end = nullptr;
  state.request = std::strtoll(at, &end, 10);
  state.number = std::strtoull(end, &end, 10);
  if (state.request < request_) return std::nullopt;
  const std::string words = *end ? end + 1 : "";
  const std::size_t line = std::min(words.find('\n'), words.size());
  state.last = words.substr(0, line);
  if (line < words.size()) state.waits_for = words.substr(line + 1);
  return state;
}

// What this rank has enqueued last, and what it waits for, for a rank that looks for the one that is missing.
void Rank::publish_state(std::int64_t request) {
  std::string text;
  {
    const std::lock_guard lock(state_);
    text = cat(request, ' ', last_number_, ' ', last_enqueued_ ? to_string(*last_enqueued_) : "", '\n',
               pending_.empty() ? "" : to_string(pending_.front().fingerprint));
  }
  oob_.publish(kState, text);
  answered_ = request;
}
void Rank::publish_state_if_asked() {
  if (const std::int64_t request = oob_.states_requested(); request > answered_) publish_state(request);
}

// Names who is missing or has called something else.
CommError Rank::explain_timeout(const Fingerprint& oldest, Milliseconds timeout) {
  const State mine = state_of(oob_.rank()).value_or(State{});
  std::optional<int> missing;
  std::string text, differences;
  std::vector<int> waiting;          // for what has not come about
  std::vector<std::string> awaited;  // what that is
  for (int r = 0; r < oob_.size(); ++r) {
    const std::optional<State> said = state_of(r);
    const State state = said.value_or(State{});
    if (!said || state.number < oldest.sequence) {
      if (!missing) missing = r;
      text += cat("; rank ", r, " did not come (",
                  !said                ? "and says nothing"
                  : state.last.empty() ? "it has made no call"
                                       : "its last call was " + state.last,
                  ")");
    } else if (!state.waits_for.empty()) {
      waiting.push_back(r);
      awaited.push_back(state.waits_for);
      if (state.waits_for != mine.waits_for) differences += cat("; rank ", r, " has called ", state.waits_for);
    }
  }
  const auto same = [&](int a, int b) {
    return awaited[static_cast<std::size_t>(a)] == awaited[static_cast<std::size_t>(b)];
  };
  int rank = oob_.rank();
  if (missing)
    rank = *missing;
  else if (const auto found = detail::odd_one_out(static_cast<int>(waiting.size()), same))
    rank = waiting[static_cast<std::size_t>(found->odd)];
  return CommError(rank, to_string(oldest.kind),
                   cat("rank ", oob_.rank(), " expected ", to_string(oldest), " to be through within ", timeout.count(),
                       " ms, it is not", text, differences));
}

// Sends and receives have numbers of their own, per pair, so how far others are says nothing. Names a rank that is
// silent, before all one that is waited for; else one that is waited for, before all one that waits for nothing itself.
CommError Rank::explain_pair_timeout(const Fingerprint& oldest, Milliseconds timeout, const std::vector<int>& peers) {
  std::optional<int> silent, idle;
  std::string text;
  for (const int peer : std::set<int>(peers.begin(), peers.end())) {
    const std::optional<State> said = state_of(peer);
    const State state = said.value_or(State{});
    if (!said && !silent) silent = peer;
    if (said && state.waits_for.empty() && !idle) idle = peer;
    text += cat("; rank ", peer,
                !said                     ? " says nothing"
                : state.waits_for.empty() ? " waits for nothing"
                                          : " waits for " + state.waits_for);
  }
  if (const int other = silent_rank(); !silent && other != oob_.rank()) silent = other;
  const int rank = silent ? *silent : idle.value_or(peers[0]);
  return CommError(rank, to_string(oldest.kind),
                   cat("rank ", oob_.rank(), " expected ", to_string(oldest), ", ",
                       oldest.kind == Collective::Kind::send ? "to" : "from", " rank ", peers[0],
                       peers.size() > 1 ? cat(", the first of ", peers.size(), " at once,") : "",
                       " to be through within ", timeout.count(), " ms, it is not", text));
}

// An exchange to which not all have come. To blame is a rank that is silent, which may be why the others wait; else
// those who have come, where most wait for something else.
CommError Rank::explain_exchange(const Collective& collective, const std::string& name) {
  const int silent = find_silent_rank();
  std::optional<int> first_here, first_missing;
  int here = 0, elsewhere = 0;
  std::string text;
  for (int r = 0; r < oob_.size(); ++r) {
    if (oob_.peek(name, r)) {
      if (here++ == 0) first_here = r;
      continue;
    }
    if (!first_missing) first_missing = r;
    const State state = state_of(r).value_or(State{});
    elsewhere += !state.waits_for.empty();
    text += cat("; rank ", r, " did not come", state.waits_for.empty() ? "" : cat(", it waits for ", state.waits_for));
  }
  const int rank = silent != oob_.rank()          ? silent
                   : here > 0 && elsewhere > here ? *first_here
                                                  : first_missing.value_or(oob_.rank());
  return CommError(rank, to_string(collective.kind),
                   cat("rank ", oob_.rank(), " expected every rank within ", collective.timeout.count(), " ms", text));
}

}  // namespace lockstep::nccl
