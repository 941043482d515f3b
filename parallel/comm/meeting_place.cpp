#include "lockstep/parallel/comm/meeting_place.h"

#include <algorithm>
#include <random>

#include "lockstep/parallel/comm/comm_error_message.h"
#include "lockstep/parallel/comm/odd_one_out.h"

namespace lockstep::detail {
namespace {

// For who is in the collective `name`, whatever the failure was found in.
[[noreturn]] void pass_on(const CommError& failure, const char* name) {
  throw CommError(failure.rank, name, message_of_failure(failure));
}

}  // namespace

MeetingPlace::MeetingPlace(std::vector<int> ranks)
    : ranks_(std::move(ranks)), left_(ranks_.size()), last_(ranks_.size()) {}

std::string MeetingPlace::describe_missing(const Table& table) const {
  std::string text;
  for (std::size_t r = 0; r < table.present.size(); ++r) {
    if (table.present[r]) continue;
    const std::string last = last_[r] ? cat("its last call was ", to_string(*last_[r])) : "it has made no call";
    text += cat(text.empty() ? "" : ", ", "rank ", ranks_[r], " did not come (", last, ")");
  }
  return text;
}

// Why there is nothing to wait for, if so. Under the mutex.
std::optional<CommError> MeetingPlace::why_not(const Table& table, const char* name, bool open) const {
  if (open && failure_) return failure_;
  for (std::size_t r = 0; r < table.present.size(); ++r)
    if (left_[r] && !table.present[r])
      return CommError(ranks_[r], name, "it left before this collective: its communicator was destroyed");
  return std::nullopt;
}

std::vector<Contribution> MeetingPlace::meet(const Meeting& meeting, int member, Contribution contribution,
                                             Milliseconds timeout) {
  const char* name = to_string(contribution.fingerprint.kind);
  std::vector<Arrival> one;
  one.push_back({meeting, std::move(contribution)});
  come(std::move(one), member);
  return collect(meeting, name, timeout, Deadline::after(timeout));
}

void MeetingPlace::come(std::vector<Arrival>&& arrivals, int member) {
  const auto self = static_cast<std::size_t>(member);
  const std::lock_guard lock(mutex_);
  for (const Arrival& arrival : arrivals)
    if (failure_ && arrival.meeting.phase == 0) pass_on(*failure_, to_string(arrival.contribution.fingerprint.kind));
  for (auto& [meeting, contribution] : arrivals) {
    if (meeting.phase == 0) last_[self] = contribution.fingerprint;
    Table& table = meetings_[meeting];  // stays where it is until the last one has left
    if (table.contributions.empty()) {
      table.contributions.resize(ranks_.size());
      const bool pair = meeting.sender >= 0;
      table.present.assign(ranks_.size(), pair);  // who does not belong to it is not waited for
      table.missing = pair ? 2 : size();
      if (pair) {
        table.present[static_cast<std::size_t>(meeting.sender)] = false;
        table.present[static_cast<std::size_t>(meeting.receiver)] = false;
      }
    }
    table.contributions[self] = std::move(contribution);
    table.present[self] = true;
    ++table.here;
    if (--table.missing == 0) changed_.notify_all();
  }
}

std::size_t MeetingPlace::wait_for_any(const std::vector<Meeting>& meetings, Deadline deadline) {
  std::unique_lock lock(mutex_);
  std::size_t found = 0;
  const auto over = [&] {
    for (found = 0; found < meetings.size(); ++found) {
      const Table& table = meetings_[meetings[found]];
      if (table.missing == 0 || why_not(table, "", meetings[found].phase == 0)) return true;
    }
    found = 0;
    return false;
  };
  if (deadline.never())
    changed_.wait(lock, over);
  else
    changed_.wait_until(lock, deadline.time(), over);
  return found;
}

std::vector<Contribution> MeetingPlace::collect(const Meeting& meeting, const char* name, Milliseconds timeout,
                                                Deadline deadline) {
  const bool open = meeting.phase == 0;
  std::unique_lock lock(mutex_);
  Table& table = meetings_[meeting];
  std::optional<CommError> error;
  const auto over = [&] {
    if (table.missing == 0) return true;
    error = why_not(table, name, open);
    return error.has_value();
  };
  bool in_time = true;
  if (deadline.never()) {
    changed_.wait(lock, over);
  } else {
    in_time = changed_.wait_until(lock, deadline.time(), over);
  }
  if (table.missing > 0) {
    if (!in_time) {
      const auto first = static_cast<std::size_t>(std::find(table.present.begin(), table.present.end(), false) -
                                                  table.present.begin());
      error = CommError(ranks_[first], name,
                        cat("expected every rank within ", timeout.count(), " ms, ", describe_missing(table)));
    }
    if (!failure_) failure_ = error;
    changed_.notify_all();
    if (--table.here == 0) meetings_.erase(meeting);
    pass_on(*failure_, name);
  }
  if (table.here == 1) {
    std::vector<Contribution> contributions = std::move(table.contributions);
    meetings_.erase(meeting);
    return contributions;
  }
  --table.here;
  return table.contributions;
}

void MeetingPlace::fail(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  changed_.notify_all();
}

void MeetingPlace::leave(int member) {
  const std::lock_guard lock(mutex_);
  left_[static_cast<std::size_t>(member)] = true;
  changed_.notify_all();
}

std::vector<int> MeetingPlace::gone() {
  const std::lock_guard lock(mutex_);
  std::vector<int> members;
  for (int m = 0; m < size(); ++m)
    if (left_[static_cast<std::size_t>(m)]) members.push_back(m);
  return members;
}

void MeetingPlace::check_agreement(const Meeting& meeting, const std::vector<Contribution>& contributions) const {
  const bool pair = meeting.sender >= 0;
  const auto print = [&](int member) -> const Fingerprint& {
    return contributions[static_cast<std::size_t>(member)].fingerprint;
  };
  const auto same = [&](int a, int b) {
    return pair ? print(a).count == print(b).count && print(a).dtype == print(b).dtype : print(a) == print(b);
  };
  const auto disagree = [&](int odd, int other) {
    const auto [first, second] = std::minmax(odd, other);
    throw CommError(ranks_[static_cast<std::size_t>(odd)], to_string(print(other).kind),
                    cat("expected all ranks to call the same, got ", to_string(print(first)), " from rank ",
                        ranks_[static_cast<std::size_t>(first)], " and ", to_string(print(second)), " from rank ",
                        ranks_[static_cast<std::size_t>(second)]));
  };
  if (pair) {
    const auto [first, second] = std::minmax(meeting.sender, meeting.receiver);
    if (!same(first, second)) disagree(second, first);
    return;
  }
  const auto count = static_cast<int>(contributions.size());
  bool agreed = true;
  for (int m = 1; agreed && m < count; ++m) agreed = same(0, m);
  if (agreed) [[likely]]
    return;
  const OddOneOut found = *odd_one_out(count, same);
  disagree(found.odd, found.usual);
}

const std::string& process_token() {
  static const auto* const token = [] {
    std::random_device random;
    return new std::string(cat(random(), '-', random(), '-', random(), '-', random()));
  }();
  return process_token_override ? *process_token_override : *token;
}

}  // namespace lockstep::detail
