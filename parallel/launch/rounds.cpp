#include "lockstep/parallel/launch/rounds.h"

#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/launch/cleanup.h"
#include "lockstep/parallel/launch/job.h"
#include "lockstep/parallel/launch/nodes.h"
#include "lockstep/parallel/launch/summary.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::launch {
namespace {

int most_ranks(const Options& options) {
  return options.max_ranks > 0 ? std::min(options.ranks, options.max_ranks) : options.ranks;
}

// How many the next round has, where `before` had as many as its options say.
int next_ranks(const Options& options, const Round& before) {
  const int most = most_ranks(options);
  if (options.nodes > 1) return most;
  const auto gone = std::count_if(before.job.ranks.begin(), before.job.ranks.end(),
                                  [](const RankEnd& each) { return each.failed() && !each.follows(); });
  const int left = before.options.ranks - std::max(static_cast<int>(gone), 1);
  return left >= (options.min_ranks > 0 ? options.min_ranks : most) ? left : most;
}

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

int run_rounds(const Options& options, const std::string& token, JsonFile& json) {
  const std::string run_id = detail::to_hex(detail::random_bytes(8));
  Guard guard(run_id);
  const char* const outer = std::getenv(kRunId);
  const std::string name = outer ? cat(outer, '.', run_id) : run_id;
  const sigset_t signals = set_of({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD});
  // While it waits for other machines these end this process as they do any other.
  const sigset_t endings = set_of({SIGINT, SIGTERM, SIGHUP, SIGQUIT});
  sigset_t before;
  sigprocmask(SIG_BLOCK, nullptr, &before);

  std::vector<Round> rounds;
  Options next = options;
  next.ranks = most_ranks(options);
  while (true) {
    if (next.round > 0 && next.nodes > 1) sigprocmask(SIG_UNBLOCK, &endings, nullptr);
    Nodes nodes(next, token, run_id);
    next.round = nodes.round();
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGCHLD, SIG_DFL);  // a parent may have left it ignored: then no rank's end would be told
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    nodes.watch();
    Job job(next, nodes, name, signals, before);
    const JobEnd end = job.run(nodes.token());
    rounds.push_back({next, end});
    if (end.end.code == 0 || end.end.final || next.round >= options.restarts) {
      const std::string unwritten = json.write(job_json(rounds));
      if (!unwritten.empty()) say_now(unwritten);
      guard.dismiss();
      return end.end.code;
    }
    next.ranks = next_ranks(options, rounds.back());
    ++next.round;
    say_now(cat("round ", next.round, " of at most ", options.restarts, " begins with ", next.world_size(), " ranks"));
  }
}

}  // namespace lockstep::launch
