#include "lockstep/parallel/launch/job.h"

#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "lockstep/parallel/launch/cleanup.h"
#include "lockstep/parallel/launch/program.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

std::string line_of(const std::string& message) { return cat("lockstep-run: ", message, '\n'); }

Shown shown(const Options& options) {
  const bool to_files_alone = !options.log_dir.empty() && options.show.empty();
  // A rank that is not of this round may be of another.
  return Shown(options.tee, options.show, to_files_alone ? 0 : 3, std::numeric_limits<int>::max());
}

}  // namespace

void say_now(const std::string& message) {
  const std::string line = line_of(message);
  [[maybe_unused]] const ssize_t written = ::write(2, line.data(), line.size());
}

Job::Job(const Options& options, Nodes& nodes, std::string run_id, const sigset_t& signals, const sigset_t& before)
    : options_(options),
      nodes_(nodes),
      run_id_(std::move(run_id)),
      before_(before),
      host_(host_name()),
      node_(options.several() ? options.node_rank(options.node) : -1),
      can_leave_(options.several() && options.restarts > 0 && options.node != 0),
      signals_(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)),
      output_(options.prefix, shown(options)) {
  if (!signals_) throw Error(cat("cannot wait for signals: ", std::strerror(errno)));
}

JobEnd Job::run(const std::string& token) {
  std::optional<End> obstacle;
  try {
    open_logs();
    if (shares_cores() && options_.round == 0)
      say_now(cat("OMP_NUM_THREADS is not set: each of the ", options_.ranks,
                  " ranks gets 1, so that they do not crowd the cores; set it to what suits"));
    for (int i = 0; i < options_.ranks && !obstacle; ++i) obstacle = start(i, token);
  } catch (const Error& error) {
    obstacle = End{.code = 1, .message = error.what()};
  }
  if (obstacle) {
    End end = *obstacle;
    if (options_.several()) end.message = cat("node ", node_, " (", host_, "): ", end.message);
    end.next = can_leave_ ? End::Next::restart : End::Next::none;
    end_for(std::move(end), SIGKILL);
  }
  loop();
  kill_all(run_id_);
  const End end = *nodes_.end();
  const auto unfit = why_unfit(std::move(obstacle));
  JobEnd job{.end = end,
             .began = began_,
             .ranks = nodes_.leave(!interrupted_, unfit ? Leaving::for_good : Leaving::comes_again),
             .unfit = unfit};
  job.ended = now_milliseconds();
  if (interrupted_ && end.next != End::Next::none) job.stop = interrupted_;
  if (!end.details.empty())
    say_now(cat("first failure: ", end.message, end.details));
  else if (end.code != 0 && end.message != reason_)
    say_now(end.message);
  return job;
}

std::optional<End> Job::why_unfit(std::optional<End> obstacle) const {
  if (!can_leave_ || interrupted_) return std::nullopt;  // a signal has to be told in the next round
  std::optional<End> why = obstacle ? std::move(obstacle) : why_not_run(options_.program.front());
  // Whose ranks ran before may have the same trouble as all others; a newcomer alone would end each round anew.
  for (const Rank& rank : ranks_)
    if (!why && options_.newcomer && rank.end.how == RankEnd::How::exited &&
        (rank.end.number == kCannotRun || rank.end.number == kNotFound))
      why = End{.code = rank.end.number,
                .message = cat("rank ", rank.end.rank, ' ', describe(rank.end), ": its program ",
                               rank.end.number == kNotFound ? "was not found" : "could not be run")};
  if (why) why->message = cat("node ", node_, " takes part in no other round: ", why->message);
  return why;
}

void Job::open_logs() {
  if (options_.log_dir.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options_.log_dir, error);
  if (error) throw Error(cat("cannot make the folder '", options_.log_dir, "': ", error.message()));
  for (int i = 0; i < options_.ranks; ++i) {
    const int rank = options_.node * options_.ranks + i;
    output_.log_to(rank, log_file(options_.log_dir, rank), options_.round > 0);
  }
}

bool Job::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

bool Job::any_moving() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running && !rank.stopped; });
}

std::vector<RankEnd> Job::ends() const {
  std::vector<RankEnd> ends;
  for (const Rank& rank : ranks_) {
    ends.push_back(rank.end);
    if (rank.end.blamed == RankEnd::kNobody) ends.back().error = output_.last_error(rank.end.rank);
  }
  return ends;
}

// Until the ranks of this machine have ended, what they wrote is written, and the other machines are done too.
void Job::loop() {
  bool reported = false;
  std::optional<Clock::time_point> drain_until;
  while (true) {
    if (!any_running() && !drain_until) {
      kill_all(run_id_);  // what the ranks have left behind, which may hold their pipes
      drain_until = Clock::now() + Milliseconds(2'000);
    }
    // What waits for the reader is not late: more comes from the ranks when there is room.
    const auto until = output_.written() ? drain_until : std::nullopt;
    const bool late = until && Clock::now() >= *until;
    if (drain_until && !reported && (late || output_.all_read())) {
      output_.end_lines();
      nodes_.report(ends());
      reported = true;
    }
    if (reported && output_.written() && nodes_.end()) return;
    poll_once(reported ? std::nullopt : until);
  }
}

void Job::poll_once(std::optional<Clock::time_point> drain_until) {
  std::vector<pollfd> polls = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                               {.fd = reports_.event(), .events = POLLIN, .revents = 0},
                               {.fd = nodes_.event(), .events = POLLIN, .revents = 0}};
  output_.prepare(polls);
  auto wake = Clock::time_point::max();
  const auto stopped_until = give_up_stopped();
  for (const auto& each : {drain_until, patience_until_, kill_at_, stopped_until})
    if (each) wake = std::min(wake, *each);
  int timeout = -1;
  if (wake != Clock::time_point::max())
    timeout = static_cast<int>(
        std::clamp<std::int64_t>(std::chrono::ceil<Milliseconds>(wake - Clock::now()).count(), 0, 1'000'000));
  ::poll(polls.data(), polls.size(), timeout);

  output_.handle(polls);
  if (output_.closed())
    end_for({.code = 128 + SIGPIPE, .message = "nobody reads the output any more", .next = End::Next::none}, SIGTERM);
  handle_signals();
  take_reports();
  follow_nodes();
  if (patience_until_ && (Clock::now() >= *patience_until_ || !any_moving())) cut(SIGTERM);
  if (kill_at_ && Clock::now() >= *kill_at_) {
    kill_at_.reset();
    for (const Rank& rank : ranks_)
      if (rank.running) say(cat("rank ", rank.end.rank, " did not end within ", seconds(options_.grace), " s: killed"));
    signal_all(SIGKILL);
  }
}

void Job::follow_nodes() {
  nodes_.clear_event();
  for (const std::string& each : nodes_.take_news()) say(each);
  const auto ending = nodes_.ending();
  if (!ending || ending_) return;
  if (ending->reason)
    end_for(*ending->reason, SIGTERM);
  else
    end_for_failure(options_.keep_going ? cat("fewer than ", options_.min_ranks, " ranks are left")
                                        : "a rank of another node has failed");
}

// Where the others go on, one that is stopped would be waited for for ever.
std::optional<Clock::time_point> Job::give_up_stopped() {
  std::optional<Clock::time_point> next;
  if (!options_.keep_going || ending_) return next;
  for (Rank& rank : ranks_) {
    if (!rank.running || !rank.stopped || rank.given_up) continue;
    const auto until = rank.stopped_since + options_.timeout;
    if (Clock::now() < until) {
      next = std::min(next.value_or(until), until);
      continue;
    }
    rank.given_up = true;
    rank.end.blamed = rank.end.rank;
    rank.end.error =
        cat("it was stopped by signal ", signal_name(rank.stopped), " for ", seconds(options_.timeout), " s");
    ::kill(-rank.end.process, SIGKILL);
  }
  return next;
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
          interrupted_ = end_by_signal(signal);
          if (ending_) cut(signal);
          end_for(*interrupted_, signal);
        }
    }
  }
}

void Job::reap() {
  std::vector<const Rank*> ended;
  const std::int64_t now = now_milliseconds();
  int status = 0;
  for (pid_t process; (process = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
    for (Rank& rank : ranks_) {
      if (rank.end.process != process || !rank.running) continue;
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        rank.stopped = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
        rank.stopped_since = Clock::now();
        continue;
      }
      rank.running = false;
      if (cut_) continue;
      rank.end.how = WIFSIGNALED(status) ? RankEnd::How::killed : RankEnd::How::exited;
      rank.end.number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
      rank.end.order = now;
      ended.push_back(&rank);
    }
  take_reports();  // what those that have ended said before
  for (const Rank* rank : ended)
    if (!ending_) nodes_.rank_ended(rank->end);
  for (const Rank* rank : ended)
    if (rank->end.failed()) rank_failed(rank->end);
}

void Job::rank_failed(const RankEnd& rank) {
  if (ending_) return;
  std::string what = cat("rank ", rank.rank, ' ', describe(rank));
  if (rank.follows() && rank.blamed >= 0) what += cat(" because of rank ", rank.blamed);
  if (options_.keep_going)
    say(cat(what, (any_running() || options_.several()) && !nodes_.ending() ? ": the others go on" : ""));
  else
    end_for_failure(what);
}

void Job::take_reports() {
  for (Report report; reports_.next(report);)
    for (Rank& rank : ranks_) {
      if (rank.end.rank != report.rank || rank.given_up) continue;
      rank.end.blamed = report.well ? RankEnd::kNobody : report.blamed;
      rank.end.blamed_order = now_milliseconds();
      rank.end.error = report.text;
    }
}

void Job::signal_all(int signal) {
  // Also the groups of ranks that have ended: their children may still be there.
  for (const Rank& rank : ranks_) ::kill(-rank.end.process, signal);
}

void Job::end_for_failure(const std::string& what) {
  if (ending_) return;
  ending_ = true;
  patience_until_ = Clock::now() + options_.patience;
  say(any_moving() && options_.patience.count() > 0
          ? cat(what, ": the others have ", seconds(options_.patience), " s to end by themselves")
          : what);
  nodes_.begin_to_end(std::nullopt);
}

void Job::end_for(End reason, int signal) {
  if (ending_) return;
  ending_ = true;
  say(cat(reason.message, any_running() ? ": ending the ranks" : ""));
  reason_ = reason.message;
  cut(signal);
  nodes_.begin_to_end(std::move(reason));
}

void Job::cut(int signal) {
  patience_until_.reset();
  if (!std::exchange(cut_, true)) {
    for (Rank& rank : ranks_) {
      if (!rank.running) continue;
      rank.end.how = rank.stopped ? RankEnd::How::stopped : RankEnd::How::cut;
      rank.end.number = rank.stopped;
      rank.end.order = now_milliseconds();
    }
    kill_at_ = Clock::now() + options_.grace;
  }
  signal_all(signal);
  // A stopped process would not notice.
  if (signal != SIGKILL) signal_all(SIGCONT);
}

void Job::say(const std::string& message) { output_.say(line_of(message)); }

}  // namespace lockstep::launch
