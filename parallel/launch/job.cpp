#include "lockstep/parallel/launch/job.h"

#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "lockstep/parallel/launch/cleanup.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

std::string signal_name(int signal) { return cat(signal, " (", ::strsignal(signal), ')'); }

}  // namespace

Job::Job(const Options& options, Nodes& nodes, std::string run_id, const sigset_t& signals, const sigset_t& before)
    : options_(options),
      nodes_(nodes),
      run_id_(std::move(run_id)),
      before_(before),
      signals_(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)) {
  if (!signals_) throw Error(cat("cannot wait for signals: ", std::strerror(errno)));
}

int Job::run(const std::string& token) {
  for (int i = 0; i < options_.ranks; ++i) {
    if (start(i, token)) continue;
    const End reason = *reason_;
    reason_.reset();
    end(reason, SIGKILL);
    break;
  }
  loop();
  kill_all(run_id_);
  nodes_.leave(!interrupted_);
  return reason_ ? reason_->code : 0;
}

bool Job::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

// Until the ranks of this machine have ended, what they wrote is written, and the other machines are done too.
void Job::loop() {
  bool swept = false, reported = false, seen = false;  // seen: the end of the job
  std::optional<Clock::time_point> drain_until;
  std::vector<pollfd> polls;
  while (true) {
    if (!any_running() && !swept) {
      kill_all(run_id_);  // what the ranks have left behind, which may hold their pipes
      swept = true;
      drain_until = Clock::now() + Milliseconds(2'000);
    }
    if (swept && !reported) {
      if (!reason_) nodes_.report({});
      reported = true;
    }
    const bool drained = output_.finished() || (drain_until && Clock::now() >= *drain_until && output_.written());
    if (swept && drained && nodes_.end()) {
      if (!reason_ && nodes_.end()->code != 0) end(*nodes_.end(), SIGTERM);
      return;
    }

    polls.assign({{.fd = signals_.get(), .events = POLLIN, .revents = 0}});
    if (!seen) polls.push_back({.fd = nodes_.event(), .events = POLLIN, .revents = 0});
    output_.prepare(polls);
    auto wake = kill_at_.value_or(Clock::time_point::max());
    if (drain_until && !output_.finished() && output_.written()) wake = std::min(wake, *drain_until);
    int timeout = -1;
    if (wake != Clock::time_point::max())
      timeout = static_cast<int>(
          std::clamp<std::int64_t>(std::chrono::ceil<Milliseconds>(wake - Clock::now()).count(), 0, 1'000'000));
    ::poll(polls.data(), polls.size(), timeout);

    output_.handle(polls);
    if (output_.closed() && !reason_) end({128 + SIGPIPE, "nobody reads the output any more"}, SIGTERM);
    handle_signals();
    if (const auto ended = nodes_.end()) {
      seen = true;
      if (ended->code != 0 && !reason_) end(*ended, SIGTERM);
    }
    if (kill_at_ && Clock::now() >= *kill_at_) {
      kill_at_.reset();
      for (const Rank& rank : ranks_)
        if (rank.running)
          say(cat("rank ", rank.number, " did not end within ", std::chrono::duration<double>(options_.grace).count(),
                  " s: killed"));
      signal_all(SIGKILL);
    }
  }
}

void Job::handle_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    switch (signal) {
      case SIGCHLD:
        reap();
        break;
      case SIGUSR1:
      case SIGUSR2:
        signal_all(signal);
        break;
      case SIGTSTP:
        signal_all(SIGSTOP);
        ::kill(::getpid(), SIGSTOP);
        signal_all(SIGCONT);
        break;
      default:
        if (interrupted_) {
          signal_all(SIGKILL);
        } else {
          interrupted_ = true;
          if (reason_) signal_all(signal);
          end({128 + signal, cat("ended by signal ", signal_name(signal))}, signal);
        }
    }
  }
}

void Job::reap() {
  struct Ended {
    int rank, status;
  };
  std::vector<Ended> ended;
  int status = 0;
  for (pid_t process; (process = ::waitpid(-1, &status, WNOHANG)) > 0;)
    for (Rank& rank : ranks_) {
      if (rank.process != process || !rank.running) continue;
      rank.running = false;
      ended.push_back({rank.number, status});
    }
  // Of ranks that ended at the same time, one that was killed is rather the cause than one that noticed.
  std::stable_sort(ended.begin(), ended.end(),
                   [](const Ended& a, const Ended& b) { return WIFSIGNALED(a.status) && !WIFSIGNALED(b.status); });
  for (const Ended& each : ended) {
    if (reason_) break;
    if (WIFSIGNALED(each.status)) {
      const int signal = WTERMSIG(each.status);
      end({128 + signal, cat("rank ", each.rank, " was killed by signal ", signal_name(signal))}, SIGTERM);
    } else if (WEXITSTATUS(each.status) != 0) {
      const int code = WEXITSTATUS(each.status);
      end({code, cat("rank ", each.rank, " exited with code ", code)}, SIGTERM);
    }
  }
}

void Job::signal_all(int signal) {
  // Also the groups of ranks that have ended: their children may still be there.
  for (const Rank& rank : ranks_) ::kill(-rank.process, signal);
}

void Job::end(End reason, int signal) {
  if (reason_) return;
  reason_ = std::move(reason);
  say(cat(reason_->message, any_running() ? ": ending the other ranks" : ""));
  nodes_.report(*reason_);
  signal_all(signal);
  // A stopped process would not notice.
  if (signal != SIGKILL) signal_all(SIGCONT);
  kill_at_ = Clock::now() + options_.grace;
}

void Job::say(const std::string& message) {
  const std::string line = cat("lockstep-run: ", message, '\n');
  [[maybe_unused]] const ssize_t written = ::write(2, line.data(), line.size());
}

}  // namespace lockstep::launch
