#include "lockstep/parallel/comm/meeting_place.h"

#include <algorithm>
#include <random>

namespace lockstep::detail {

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
  const bool open = meeting.phase == 0;
  const Deadline deadline = Deadline::after(timeout);
  std::unique_lock lock(mutex_);
  if (open) {
    if (failure_) throw *failure_;
    last_[static_cast<std::size_t>(member)] = contribution.fingerprint;
  }
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
  table.contributions[static_cast<std::size_t>(member)] = std::move(contribution);
  table.present[static_cast<std::size_t>(member)] = true;
  ++table.here;
  if (--table.missing == 0) changed_.notify_all();

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
    throw *failure_;
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

void MeetingPlace::check_agreement(const Meeting& meeting, const std::vector<Contribution>& contributions) const {
  const bool pair = meeting.sender >= 0;
  const auto first = static_cast<std::size_t>(pair ? meeting.sender : 0);
  const Fingerprint& expected = contributions[first].fingerprint;
  for (std::size_t r = 0; r < contributions.size(); ++r) {
    if (r == first || (pair && r != static_cast<std::size_t>(meeting.receiver))) continue;
    const Fingerprint& got = contributions[r].fingerprint;
    const bool same = pair ? got.count == expected.count && got.dtype == expected.dtype : got == expected;
    if (same) continue;
    throw CommError(ranks_[r], to_string(expected.kind),
                    cat("expected all ranks to call the same, got ", to_string(expected), " from rank ", ranks_[first],
                        " and ", to_string(got), " from rank ", ranks_[r]));
  }
}

const std::string& process_token() {
  static const auto* const token = [] {
    std::random_device random;
    return new std::string(cat(random(), '-', random(), '-', random(), '-', random()));
  }();
  return process_token_override ? *process_token_override : *token;
}

}  // namespace lockstep::detail
