// Which nodes take part in a round, where a job of several nodes has restarts.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/parallel/launch/arrivals.h"
#include "lockstep/parallel/launch/job_store.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

// A round as this node takes part in it.
struct Meeting {
  Options options;
  JobStore store;
};

// Node 0 serves a store for each round. The nodes come to it, and node 0 says who is of the round: those of the round
// before, then others by their numbers, as many as fit. It waits for those of the round before for the time-out, and
// for at least min_ranks ranks for the join time-out. Who comes later waits in that store until the round has ended.
// The launchers show the job's token to it, the ranks that of their round.
//
// Signals that end the job must be blocked: they are looked for while it waits.
class Membership {
 public:
  // The job's nodes at first, and this one by its --node-rank. `run_id` names this lockstep-run.
  Membership(const Options& options, std::string token, std::string run_id);

  // Blocks until a round has begun that this node is of. Else there is none for it any more, and why. With `stop` there
  // is no round for anybody: it ends the job on all nodes. InvalidArgument for options that do not fit node 0's,
  // CommError where node 0 is not there at first.
  std::variant<Meeting, End> next(const std::optional<End>& stop);

  // Node 0, from any thread between next() and ended(): why the round is to end so that others can be taken in, if it
  // is.
  std::optional<End> newcomers();
  // The round has ended, and another follows: these have been there to the end, by place.
  void ended(const End& end, const std::vector<int>& places);
  // Likewise, and none follows. Node 0 tells those that wait.
  void finish(const End& end);

 private:
  std::variant<Meeting, End> form(std::optional<End> stop);
  std::variant<Meeting, End> come(const std::optional<End>& stop);
  std::variant<Meeting, End> come_once(const std::optional<End>& stop, Deadline& reach);
  std::variant<int, End> wait_for_round(Store& store, Deadline& reach);
  Meeting begin(int round, const Plan& plan, int place, JobStore store);
  std::vector<Arrival> choose(const std::vector<Arrival>& present) const;
  End over(const End& end, const std::vector<Arrival>& wait_for);
  std::string too_few(const std::vector<Arrival>& members) const;
  std::size_t least_nodes() const;
  std::size_t most_nodes() const;

  const Options options_;
  const std::string token_, run_id_;
  std::string job_;  // node 0's run_id
  int round_ = -1;   // the newest that this node was of
  int restarts_used_ = 0;
  std::set<int> expected_;  // node 0: the numbers of the nodes that the next round waits for
  // Node 0: it listens from the first round to the last, also while no store is served: nobody listens when it has
  // gone.
  detail::Fd listener_;
  std::shared_ptr<Store> store_;
  std::optional<Arrivals> arrivals_;
  Plan plan_;
};

}  // namespace lockstep::launch
