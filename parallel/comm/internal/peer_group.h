// Where the ranks of a PeerCommunicator meet: host threads that wait for each other and exchange what they need to
// know. Private to the library.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::detail {

// What a rank brings to a meeting.
struct PeerPost {
  Fingerprint fingerprint;
  const void* input = nullptr;
  void* output = nullptr;
  std::shared_ptr<const Event> event;  // after which the memory may be used
  std::string message;
  std::string error;  // what went wrong since the last meeting
};

// Which meeting, of whom. The ranks of the group count their meetings, and sender and receiver of each pair theirs.
struct PeerMeeting {
  int sender = -1, receiver = -1;  // -1: all ranks
  std::uint64_t number = 0;
  // The second and third meeting of one collective: whoever came to the first comes to these, whatever has happened.
  int phase = 0;
  friend auto operator<=>(const PeerMeeting&, const PeerMeeting&) = default;
};

class PeerGroup {
 public:
  explicit PeerGroup(std::vector<Device> devices);

  int size() const { return static_cast<int>(devices_.size()); }
  const std::vector<Device>& devices() const { return devices_; }
  Device device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }
  // A stream of the rank's device on which nothing ever is: for copies that are ordered by events alone.
  Stream& idle_stream(int rank) { return *idle_[static_cast<std::size_t>(rank)]; }

  // Blocks until all who belong to the meeting have come; returns what they have brought, by rank. Throws the group's
  // failure, which is CommError for ranks that are missing at the deadline or have left, for everybody who waits.
  std::vector<PeerPost> meet(const PeerMeeting& meeting, int rank, PeerPost post, Deadline deadline);

  // The first failure stays. Wakes everybody who waits, but in later phases.
  void fail(const CommError& error);
  // The rank does not come any more.
  void leave(int rank);

  // The group of some of the ranks: the first of them to ask makes it.
  std::shared_ptr<PeerGroup> split(const std::vector<int>& members, const std::string& id);

 private:
  struct Table {
    std::vector<PeerPost> posts;
    std::vector<bool> present;
    int missing = 0;
    int here = 0;  // that have not taken what they came for
  };
  struct Part {
    std::shared_ptr<PeerGroup> group;
    std::size_t asked = 0;
  };
  std::optional<CommError> why_not(const Table& table, const char* name, bool open) const;
  std::string describe_missing(const Table& table) const;

  const std::vector<Device> devices_;
  std::vector<std::unique_ptr<Stream>> idle_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<PeerMeeting, Table> meetings_;
  std::vector<bool> left_;
  std::vector<std::optional<Fingerprint>> last_;  // what each rank came for last
  std::optional<CommError> failure_;
  std::map<std::string, Part> parts_;
};

// What all ranks must agree on: CommError that names two ranks that do not, the same on all of them.
void check_agreement(const PeerMeeting& meeting, const std::vector<PeerPost>& posts);

}  // namespace lockstep::detail
