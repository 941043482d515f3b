#include "lockstep/parallel/comm/internal/peer_group.h"

#include <algorithm>

namespace lockstep::detail {

PeerGroup::PeerGroup(std::vector<Device> devices)
    : devices_(std::move(devices)), left_(devices_.size()), last_(left_.size()) {
  for (const Device device : devices_) idle_.push_back(std::make_unique<Stream>(device));
}

std::string PeerGroup::describe_missing(const Table& table) const {
  std::string text;
  for (std::size_t r = 0; r < table.present.size(); ++r) {
    if (table.present[r]) continue;
    const std::string last = last_[r] ? cat("its last call was ", to_string(*last_[r])) : "it has made no call";
    text += cat(text.empty() ? "" : ", ", "rank ", r, " did not come (", last, ")");
  }
  return text;
}

// Why there is nothing to wait for, if so. Under the mutex.
std::optional<CommError> PeerGroup::why_not(const Table& table, const char* name, bool open) const {
  if (open && failure_) return failure_;
  for (std::size_t r = 0; r < table.present.size(); ++r)
    if (left_[r] && !table.present[r])
      return CommError(static_cast<int>(r), name, "it left before this collective: its communicator was destroyed");
  return std::nullopt;
}

std::vector<PeerPost> PeerGroup::meet(const PeerMeeting& meeting, int rank, PeerPost post, Deadline deadline) {
  const char* name = to_string(post.fingerprint.kind);
  const bool open = meeting.phase == 0;
  std::unique_lock lock(mutex_);
  if (open) {
    if (failure_) throw *failure_;
    last_[static_cast<std::size_t>(rank)] = post.fingerprint;
  }
  Table& table = meetings_[meeting];  // stays where it is until the last one has left
  if (table.posts.empty()) {
    table.posts.resize(devices_.size());
    const bool pair = meeting.sender >= 0;
    table.present.assign(devices_.size(), pair);  // who does not belong to it is not waited for
    table.missing = pair ? 2 : size();
    if (pair) {
      table.present[static_cast<std::size_t>(meeting.sender)] = false;
      table.present[static_cast<std::size_t>(meeting.receiver)] = false;
    }
  }
  table.posts[static_cast<std::size_t>(rank)] = std::move(post);
  table.present[static_cast<std::size_t>(rank)] = true;
  ++table.here;
  if (--table.missing == 0) changed_.notify_all();

  std::optional<CommError> error;
  const auto over = [&] {
    if (table.missing == 0) return true;
    error = why_not(table, name, open);
    return error.has_value();
  };
  bool in_time = true;
  if (deadline.time() == Clock::time_point::max()) {
    changed_.wait(lock, over);
  } else {
    in_time = changed_.wait_until(lock, deadline.time(), over);
  }
  if (table.missing > 0) {
    if (!in_time) {
      const auto first = std::find(table.present.begin(), table.present.end(), false) - table.present.begin();
      error = CommError(static_cast<int>(first), name,
                        cat("expected every rank before the deadline, ", describe_missing(table)));
    }
    if (!failure_) failure_ = error;
    changed_.notify_all();
    if (--table.here == 0) meetings_.erase(meeting);
    throw *failure_;
  }
  if (table.here == 1) {
    std::vector<PeerPost> posts = std::move(table.posts);
    meetings_.erase(meeting);
    return posts;
  }
  --table.here;
  return table.posts;
}

void PeerGroup::fail(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  changed_.notify_all();
}

void PeerGroup::leave(int rank) {
  const std::lock_guard lock(mutex_);
  left_[static_cast<std::size_t>(rank)] = true;
  changed_.notify_all();
}

std::shared_ptr<PeerGroup> PeerGroup::split(const std::vector<int>& members, const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
  Part& part = parts_[id];
  if (!part.group) {
    std::vector<Device> devices;
    for (const int member : members) devices.push_back(device(member));
    part.group = std::make_shared<PeerGroup>(std::move(devices));
  }
  std::shared_ptr<PeerGroup> group = part.group;
  if (++part.asked == members.size()) parts_.erase(id);
  return group;
}

void check_agreement(const PeerMeeting& meeting, const std::vector<PeerPost>& posts) {
  const bool pair = meeting.sender >= 0;
  const auto first = static_cast<std::size_t>(pair ? meeting.sender : 0);
  const Fingerprint& expected = posts[first].fingerprint;
  for (std::size_t r = 0; r < posts.size(); ++r) {
    if (r == first || (pair && r != static_cast<std::size_t>(meeting.receiver))) continue;
    const Fingerprint& got = posts[r].fingerprint;
    const bool same = pair ? got.count == expected.count && got.dtype == expected.dtype : got == expected;
    if (same) continue;
    throw CommError(static_cast<int>(r), to_string(expected.kind),
                    cat("expected all ranks to call the same, got ", to_string(expected), " from rank ", first, " and ",
                        to_string(got), " from rank ", r));
  }
}

}  // namespace lockstep::detail
