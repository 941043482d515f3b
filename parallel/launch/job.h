// The ranks of this machine: started, watched, ended.
#pragma once

#include <sched.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/nodes.h"
#include "lockstep/parallel/launch/options.h"
#include "lockstep/parallel/launch/output.h"
#include "lockstep/parallel/launch/reports.h"
#include "lockstep/parallel/launch/times.h"

namespace lockstep::launch {

// To standard error, at once: where no line of a rank is under way.
void say_now(const std::string& message);

struct JobEnd {
  End end;
  std::int64_t began = 0, ended = 0;  // milliseconds since 1970
  std::vector<RankEnd> ranks;         // of all machines, as far as this one knows
  std::optional<End> stop;            // a signal that came when the round was ending for another reason
  std::optional<End> unfit;           // why this machine takes part in no other round, but the others may
};

class Job {
 public:
  // `signals` are what a descriptor of signalfd hands over, `before` the mask that ranks get.
  Job(const Options& options, Nodes& nodes, std::string run_id, const sigset_t& signals, const sigset_t& before);

  // Starts the ranks and returns when they have ended, having said why. `token` is what they show to the store.
  JobEnd run(const std::string& token);

 private:
  struct Rank {
    RankEnd end = {};  // its process is also the number of its process group
    bool running = false;
    int stopped = 0;  // by this signal
    Clock::time_point stopped_since = {};
    bool given_up = false;
  };

  void open_logs();
  std::optional<End> why_unfit(std::optional<End> obstacle) const;
  std::optional<End> start(int local_rank, const std::string& token);  // why it cannot be run
  std::vector<std::string> environment(int local_rank, const std::string& token) const;
  bool shares_cores() const;  // several ranks, and nobody says how many threads each of them has
  void loop();
  void poll_once(std::optional<Clock::time_point> drain_until);
  void handle_signals();
  void reap();
  void take_reports();
  void follow_nodes();
  std::optional<Clock::time_point> give_up_stopped();  // when to look again
  void rank_failed(const RankEnd& rank);
  void signal_all(int signal);
  // The job is going to end, because a rank has failed: all have a moment to end by themselves. Or for a reason of its
  // own: they get `signal` at once. Only the first time counts.
  void end_for_failure(const std::string& what);
  void end_for(End reason, int signal);
  // Ranks that still run get `signal` now and SIGKILL after the grace period.
  void cut(int signal);
  std::vector<RankEnd> ends() const;
  void say(const std::string& message);  // in loop(): between the lines of the ranks
  bool any_running() const;
  bool any_moving() const;  // running, and not stopped

  const Options& options_;
  Nodes& nodes_;
  const std::string run_id_;
  const sigset_t before_;
  const std::string host_;
  const int node_;        // its --node-rank; -1: there is one node alone
  const bool can_leave_;  // the others may have another round without this machine: it is not node 0
  const std::int64_t began_ = now_milliseconds();
  detail::Fd signals_;
  Reports reports_;
  Output output_;
  std::vector<Rank> ranks_;
  std::optional<Clock::time_point> patience_until_, kill_at_;
  bool ending_ = false, cut_ = false;
  std::optional<End> interrupted_;  // by a signal
  std::string reason_;              // why the job ends where that is no rank: it has been said
};

}  // namespace lockstep::launch
