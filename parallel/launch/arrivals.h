// The lockstep-runs that come to the store of a round, and whether they are still there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/job_store.h"
#include "lockstep/parallel/launch/options.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep::launch {

// One that has come. It has taken a ticket, from 1, and the number of its node, which it holds as long as it is there.
struct Arrival {
  int ticket = 0;
  int node_rank = 0;
  std::string host;
};

// For one that comes. Blocks while another one, of whom it is not known yet whether it is there, holds the number of
// the node: until that one has left or was silent for the time-out. InvalidArgument where it is there. `pause` waits
// meanwhile; where it returns false, this one gives up, and gets nothing.
std::optional<Arrival> arrive(JobStore& store, const Options& options, const std::function<bool(Milliseconds)>& pause);
// From then on: it is there. InvalidArgument when it was away for so long that another one has taken its place,
// CommError where it is to come again: it counts as one that has left.
void stay(Store& store, const Arrival& arrival);

// For node 0: all that have come to one store. One that has left, or is silent for `timeout`, is not there any more.
class Arrivals {
 public:
  Arrivals(std::shared_ptr<Store> store, Milliseconds timeout) : store_(std::move(store)), timeout_(timeout) {}
  void look();
  // By the numbers of their nodes, each of which one holds.
  std::vector<Arrival> present() const;
  // Whether all that have come with this number have left: nobody need wait for it.
  bool have_left(int node_rank) const;

 private:
  struct Seen {
    Arrival arrival;
    std::string beat;
    Clock::time_point since = Clock::now();
    bool left = false;
  };
  std::shared_ptr<Store> store_;
  Milliseconds timeout_;
  std::vector<Seen> seen_;  // the n-th has the ticket n + 1
};

// The nodes of a round, by place: what node 0 says when it begins. A place that has begun shows that it is alive by
// itself (Nodes).
struct Plan {
  int restarts_used = 0;
  std::vector<Arrival> members;

  int place_of(int ticket) const;  // -1: none
};
void publish(Store& store, const Plan& plan);
// Waits for it until the deadline; nothing where there is none.
std::optional<Plan> find_plan(Store& store, Deadline deadline);

}  // namespace lockstep::launch
