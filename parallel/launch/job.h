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

namespace lockstep::launch {

class Job {
 public:
  // `signals` are what a descriptor of signalfd hands over, `before` the mask that ranks get.
  Job(const Options& options, Nodes& nodes, std::string run_id, const sigset_t& signals, const sigset_t& before);

  // Starts the ranks and returns when they have ended: the code to exit with.
  int run(const std::string& token);

 private:
  struct Rank {
    int number = 0;      // among all ranks
    pid_t process = -1;  // also the number of its process group
    bool running = false;
  };

  bool start(int local_rank, const std::string& token);  // false: it cannot be run
  std::vector<std::string> environment(int local_rank, const std::string& token) const;
  void loop();
  void handle_signals();
  void reap();
  void signal_all(int signal);
  // The first reason counts. Ranks get `signal` now and SIGKILL after the grace period.
  void end(End reason, int signal);
  void say(const std::string& message);
  bool any_running() const;

  const Options& options_;
  Nodes& nodes_;
  const std::string run_id_;
  const sigset_t before_;
  detail::Fd signals_;
  Output output_;
  std::vector<Rank> ranks_;
  std::optional<End> reason_;
  std::optional<Clock::time_point> kill_at_;
  bool interrupted_ = false;
};

}  // namespace lockstep::launch
