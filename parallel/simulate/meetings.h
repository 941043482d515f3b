// Which collectives of different ranks belong together: the k-th of each rank of a group, and of a sender and its
// receiver. Ranks that the recording lacks behave like those it has, and are not waited for.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/parallel/simulate/recording.h"

namespace lockstep::simulate {

class Meetings {
 public:
  explicit Meetings(const Recording& recording);

  struct Meeting {
    std::set<int> expected;     // ranks of the recording
    std::map<int, int> called;  // rank, and its entry
    std::vector<int> arrived;   // entries whose turn has come in their streams
    const Collective* first = nullptr;
    int line = 0;  // of the first call
  };
  // The entry has been issued: it gets its place among the rank's collectives. Throws InvalidArgument where it does not
  // fit what another rank called there.
  void issue(int e, const Entry& entry);
  // Its turn has come in its stream. True if it was the last one.
  bool arrive(int e);
  const Meeting& of(int e) const { return meetings_[static_cast<std::size_t>(meeting_of_.at(e))]; }
  int number_of(int e) const { return meeting_of_.at(e); }
  const Meeting& at(int number) const { return meetings_[static_cast<std::size_t>(number)]; }

 private:
  using Channel = std::tuple<std::string, int, int>;  // group, sender and receiver (-1, -1: all)
  static Channel channel(const Collective& collective);

  const Recording& recording_;
  std::map<Channel, std::set<int>> ranks_;
  std::map<std::pair<Channel, int>, std::size_t> calls_;  // of each rank so far
  std::map<Channel, std::vector<int>> made_;              // the channel's meetings
  std::map<int, int> meeting_of_;
  std::vector<Meeting> meetings_;
};

}  // namespace lockstep::simulate
