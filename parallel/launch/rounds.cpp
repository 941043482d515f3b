#include "lockstep/parallel/launch/rounds.h"

#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/launch/cleanup.h"
#include "lockstep/parallel/launch/job.h"
#include "lockstep/parallel/launch/membership.h"
#include "lockstep/parallel/launch/nodes.h"
#include "lockstep/parallel/launch/program.h"
#include "lockstep/parallel/launch/summary.h"
#include "lockstep/parallel/launch/times.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::launch {
namespace {

int most_ranks(const Options& options) {
  return options.max_ranks > 0 ? std::min(options.ranks, options.max_ranks) : options.ranks;
}

// One machine: how many the next round has, where `before` had as many as its options say.
int next_ranks(const Options& options, const Round& before) {
  const int most = most_ranks(options);
  const auto gone = std::count_if(before.job.ranks.begin(), before.job.ranks.end(),
                                  [](const RankEnd& each) { return each.failed() && !each.follows(); });
  const int left = before.options.ranks - std::max(static_cast<int>(gone), 1);
  return left >= (options.min_ranks > 0 ? options.min_ranks : most) ? left : most;
}

std::string describe_start(const Options& options) {
  std::string nodes;
  for (const int node_rank : options.node_ranks) nodes += cat(nodes.empty() ? " on nodes " : ", ", node_rank);
  return cat("round ", options.round, " begins with ", options.world_size(), " ranks", nodes, ", after ",
             options.restarts_used, " of at most ", options.restarts, " restarts");
}

bool another_follows(const Options& options, const End& end) {
  return end.next == End::Next::regroup ||
         (end.next == End::Next::restart && end.code != 0 && options.restarts_used < options.restarts);
}

// A round that this node was not of.
Round no_round(const Options& options, const End& end) {
  Round none{options, {.end = end}};
  none.job.began = none.job.ended = now_milliseconds();
  return none;
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
  sigset_t before;
  sigprocmask(SIG_BLOCK, nullptr, &before);
  std::optional<Membership> membership;
  if (options.several() && options.restarts > 0) membership.emplace(options, token, run_id);
  // Without restarts signals end this process as they do any other while it waits for other machines.
  if (membership) sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGCHLD, SIG_DFL);  // a parent may have left it ignored: then no rank's end would be told
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  std::vector<Round> rounds;
  const auto finish = [&](const End& end) {
    const std::string unwritten = json.write(job_json(rounds));
    if (!unwritten.empty()) say_now(unwritten);
    guard.dismiss();
    return end.code;
  };
  Meeting next{options, {}};
  // This machine takes part in no round, or in no other one.
  const auto stay_away = [&](const End& why) {
    say_now(why.message);
    if (!rounds.empty()) ++next.options.round;
    rounds.push_back(no_round(next.options, why));
    return finish(why);
  };
  if (membership && options.node != 0)  // node 0 ends the job for all
    if (auto why = why_not_run(options.program.front())) {
      why->message = cat("node ", options.node, " does not take part: ", why->message);
      return stay_away(*why);
    }
  if (!membership) next.options.ranks = most_ranks(options);
  std::optional<End> stop;
  while (true) {
    if (membership) {
      auto met = membership->next(stop);
      if (const End* const end = std::get_if<End>(&met)) return stay_away(*end);
      next = std::move(std::get<Meeting>(met));
    } else {
      next.store = open_fixed_store(next.options, token, run_id);
    }
    if (next.options.round > 0 || next.options.nodes != options.nodes) say_now(describe_start(next.options));
    Nodes nodes(next.options, std::move(next.store));
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    if (membership && options.node == 0)
      nodes.watch([&] { return membership->newcomers(); });
    else
      nodes.watch();
    Job job(next.options, nodes, name, signals, before);
    const JobEnd end = job.run(nodes.token());
    rounds.push_back({next.options, end});
    stop = end.stop;
    const bool again = another_follows(next.options, end.end);
    if (again && stop && !membership) {
      say_now(stop->message);
      rounds.back().job.end = *stop;
      return finish(*stop);
    }
    if (membership && !again) membership->finish(end.end);
    if (!again) return finish(end.end);
    if (end.unfit) return stay_away(*end.unfit);
    if (membership) {
      membership->ended(end.end, nodes.there());
    } else {
      next.options.ranks = next_ranks(options, rounds.back());
      ++next.options.round;
      ++next.options.restarts_used;
    }
  }
}

}  // namespace lockstep::launch
