#include "lockstep/parallel/launch/nodes.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "lockstep/parallel/comm/store/ended_ranks.h"
#include "lockstep/parallel/launch/times.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

constexpr Milliseconds kAskAgain{500}, kEndsLate{2'000};
// What kEnding says: a rank has failed, all is well (along with kEnd), or, as kEnd, the code and the reason.
constexpr char kEnding[] = "lockstep-run/ending", kRank[] = "rank", kWell[] = "well";
constexpr char kFailed[] = "lockstep-run/failed";
constexpr char kEnd[] = "lockstep-run/end";

// Where it stands how a rank has ended, for node 0 if it loses the rank's node.
std::string rank_key(int rank) { return cat("lockstep-run/ended-rank/", rank); }

}  // namespace

Nodes::Nodes(const Options& options, JobStore job_store)
    : options_(options),
      job_store_(std::move(job_store)),
      store_(job_store_.client),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      beats_(static_cast<std::size_t>(options.nodes)) {
  if (options.keep_going) store_->add(kFailed, 0);  // while there is room: the ranks may fill the store
  if (!options.several()) return;
  if (!options.log_dir.empty()) store_->set(node_key("logs", options.node), options.log_dir);
  store_->add(node_key("beat", options.node), 1);  // from now on it has come
}

Nodes::~Nodes() {
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void Nodes::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

void Nodes::clear_event() {
  std::uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
}

void Nodes::conclude(Ending ending) {
  const std::lock_guard lock(mutex_);
  if (ending_) return;
  ending_ = std::move(ending);
  wake();
}

void Nodes::conclude(End end) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  end_ = std::move(end);
  wake();
}

// By what is known on this machine.
void Nodes::conclude_alone() {
  std::optional<End> end;
  {
    const std::lock_guard lock(mutex_);
    if (mine_) end = judge(ending_, *mine_);
  }
  if (end) conclude(*end);
}

std::optional<Nodes::Ending> Nodes::ending() const {
  const std::lock_guard lock(mutex_);
  return ending_;
}

std::optional<End> Nodes::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::vector<std::string> Nodes::take_news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void Nodes::defer(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  deferred_.push_back(std::move(action));
}

void Nodes::run_deferred() {
  std::vector<std::function<void()>> actions;
  {
    const std::lock_guard lock(mutex_);
    actions.swap(deferred_);
  }
  for (const auto& action : actions) action();
}

void Nodes::begin_to_end(std::optional<End> reason) {
  if (!options_.several()) return conclude(Ending{std::move(reason)});
  {
    const std::lock_guard lock(mutex_);
    own_ending_ = Ending{reason};
  }
  defer([this, text = reason ? to_text(*reason) : kRank] { store_->compare_set(kEnding, "", text); });
}

End Nodes::judge(const std::optional<Ending>& ending, const std::vector<RankEnd>& ranks) const {
  if (ending && ending->reason) return *ending->reason;
  if (!ending && !options_.keep_going) return {};
  End end = end_of(ranks);
  if (ending && end.code == 0) return {1, "a rank has failed, and its node does not say which"};
  if (!options_.keep_going || end.details.empty()) return end;
  const auto well = std::count_if(ranks.begin(), ranks.end(), [](const RankEnd& each) { return each.ended_well(); });
  end.details += cat("\n  ", well, " of ", options_.world_size(), " ranks ended well");
  if (options_.min_ranks > 0) end.details += cat(", at least ", options_.min_ranks, " are asked for");
  if (options_.min_ranks > 0 && well >= options_.min_ranks) end.code = 0;
  return end;
}

void Nodes::rank_ended(const RankEnd& rank) {
  defer([this, rank] {
    try {
      store_->set(detail::ended_key(store_->add(detail::kEndedCount, 1)), cat(rank.rank, ' ', describe(rank)));
      if (options_.several() && options_.keep_going) store_->set(rank_key(rank.rank), to_text({rank}));
    } catch (const InvalidArgument&) {  // the ranks have filled the store, and do without
    }
    if (options_.keep_going && rank.failed()) count_failures(1);
  });
  if (!options_.several()) try {  // the store is in this process, and nobody watches
      run_deferred();
    } catch (const Error&) {
    }
}

void Nodes::count_failures(int count) {
  const std::int64_t failed = store_->add(kFailed, count);
  if (options_.world_size() - failed >= options_.min_ranks) return;
  if (!options_.several())
    conclude(Ending{});
  else
    store_->compare_set(kEnding, "", kRank);
}

void Nodes::report(std::vector<RankEnd> ranks) {
  if (options_.several())
    defer([this, text = to_text(ranks)] { store_->set(node_key("report", options_.node), text); });
  {
    const std::lock_guard lock(mutex_);
    mine_ = std::move(ranks);
  }
  if (!options_.several() || lost_) conclude_alone();
}

void Nodes::watch(std::function<std::optional<End>()> newcomers) {
  if (!options_.several()) return;
  newcomers_ = std::move(newcomers);
  watcher_ = std::thread([this] {
    try {
      while (!stop_ && !look()) {
      }
    } catch (const CommError& error) {
      const bool others_go_on = options_.keep_going || options_.restarts > 0;
      part(cat(error.what(), others_go_on ? " (node 0 has the job's store: nobody goes on without it)" : ""));
    } catch (const Error& error) {
      part(error.what());
    }
  });
}

void Nodes::part(const std::string& why) {
  Ending ending{End{1, cat("lost the other nodes: ", why)}};
  {
    const std::lock_guard lock(mutex_);
    if (own_ending_) ending = *own_ending_;
  }
  conclude(std::move(ending));
  lost_ = true;
  conclude_alone();
}

// Whether the job has ended.
bool Nodes::look() {
  store_->add(node_key("beat", options_.node), 1);
  if (options_.keep_going)
    if (const auto why = store_->try_get(node_key("lost", options_.node)))
      throw Error(cat("they go on without this one: ", *why));
  run_deferred();
  if (options_.node == 0) watch_over();
  try {
    if (!ending()) {
      const std::string first = store_->get(kEnding, Deadline::after(kAskAgain));
      if (first != kWell) conclude(Ending{first == kRank ? std::nullopt : std::optional(parse_end(first))});
    }
    conclude(parse_end(store_->get(kEnd, Deadline::after(kAskAgain))));
    return true;
  } catch (const TimeoutError&) {
    return false;
  }
}

// Node 0: whether all others are alive, and how the job ends once they have said what they know.
void Nodes::watch_over() {
  std::vector<RankEnd> ranks;
  int missing = 0;
  bool all_came = true;
  const auto all_ranks = static_cast<std::size_t>(options_.world_size());
  for (int node = 0; node < options_.nodes; ++node) {
    Beat& beat = beats_[static_cast<std::size_t>(node)];
    if (const auto report = store_->try_get(node_key("report", node))) {
      if (!beat.lost) beat.silent.clear();
      for (RankEnd& each : parse_ends(*report)) ranks.push_back(std::move(each));
      continue;
    }
    const std::string count = store_->try_get(node_key("beat", node)).value_or("");
    if (count != beat.count) beat = {count};
    const bool gone = has_left(*store_, job_store_.ticket(node)).has_value();
    if ((gone || Clock::now() - beat.since >= options_.timeout) && beat.silent.empty()) {
      beat.silent = cat("node ", options_.node_rank(node));
      if (gone)
        beat.silent += " is gone: its lockstep-run has ended";
      else
        beat.silent +=
            cat(count.empty() ? " did not come within " : " was silent for ", seconds(options_.timeout), " s");
      if (const auto host = store_->try_get(node_key("host", node))) beat.silent += cat(" (", *host, ')');
      if (!options_.keep_going || count.empty()) {
        store_->compare_set(kEnding, "", to_text(End{1, beat.silent}));
      } else {
        lose(node);
        ++missing;  // until the next look, which finds what was said for its ranks
      }
    }
    // Who comes when the job is ending is told, and not waited for.
    if (!count.empty() && beat.silent.empty()) ++missing;
    all_came = all_came && !count.empty();
  }
  const auto first = store_->try_get(kEnding);
  const auto reason = first && *first != kRank && *first != kWell ? std::optional(parse_end(*first)) : std::nullopt;
  if (!first) {
    if (missing > 0 || !all_came) {
      const auto why = newcomers_ ? newcomers_() : std::nullopt;
      if (why) store_->compare_set(kEnding, "", to_text(*why));
      return;
    }
    store_->compare_set(kEnd, "", to_text(judge(std::nullopt, ranks)));
    store_->compare_set(kEnding, "", kWell);
  } else if (reason && reason->next == End::Next::regroup) {
    if (missing > 0) return;
    // The ranks may all have ended well meanwhile.
    const bool well = std::all_of(ranks.begin(), ranks.end(), [](const RankEnd& each) { return each.ended_well(); });
    store_->compare_set(kEnd, "", well && ranks.size() == all_ranks ? to_text(End{}) : *first);
  } else if (reason) {
    store_->compare_set(kEnd, "", *first);
  } else if (missing == 0) {
    End end = judge(Ending{}, ranks);
    for (const Beat& beat : beats_)  // whose ranks are not among them
      if (!beat.silent.empty()) end.details += cat("\n  ", beat.silent);
    store_->compare_set(kEnd, "", to_text(end));
  }
}

// Node 0: the job goes on without this one. It says of the node's ranks that they are lost, but for those that had
// ended before.
void Nodes::lose(int node) {
  Beat& beat = beats_[static_cast<std::size_t>(node)];
  beat.lost = true;
  store_->set(node_key("lost", node), beat.silent);
  if (!ending()) {
    const std::lock_guard lock(mutex_);
    news_.push_back(cat(beat.silent, ": the others go on"));
  }
  wake();
  const std::string host = store_->try_get(node_key("host", node)).value_or("?");
  const std::string logs = store_->try_get(node_key("logs", node)).value_or("");  // perhaps in a folder that all share
  std::set<int> told;
  for (const EndedRank& each : store_->ended_ranks()) told.insert(each.rank);
  std::vector<RankEnd> ends;
  for (int rank = node * options_.ranks; rank < (node + 1) * options_.ranks; ++rank) {
    if (const auto before = store_->try_get(rank_key(rank))) {
      ends.push_back(parse_ends(*before).at(0));
      continue;
    }
    ends.push_back({.rank = rank,
                    .how = RankEnd::How::lost,
                    .order = now_milliseconds(),
                    .error = beat.silent,
                    .node = options_.node_rank(node),
                    .host = host,
                    .log = log_file(logs, rank)});
    if (!told.contains(rank)) rank_ended(ends.back());
  }
  store_->set(node_key("report", node), to_text(ends));
}

std::vector<RankEnd> Nodes::all_ends() {
  std::vector<RankEnd> all;
  for (int node = 0; node < options_.nodes; ++node) {
    std::vector<RankEnd> ends;
    if (node == options_.node) {
      const std::lock_guard lock(mutex_);
      ends = mine_.value_or(ends);
      if (options_.several()) ends = parse_ends(to_text(ends));  // as the others read it
    } else if (!lost_) {
      try {
        ends = parse_ends(store_->try_get(node_key("report", node)).value_or(""));
      } catch (const Error&) {  // node 0 has gone: nobody waits for each of the others
        lost_ = true;
      }
    }
    all.insert(all.end(), std::make_move_iterator(ends.begin()), std::make_move_iterator(ends.end()));
  }
  return all;
}

std::vector<RankEnd> Nodes::leave(bool wait_for_late, Leaving how) {
  if (watcher_.joinable()) watcher_.join();  // it goes by itself once the end is known, and `beats_` is its own
  // Node 0 waits for the others, and knows most after that; the others know nothing any more when it has gone.
  std::vector<RankEnd> known;
  if (options_.several() && !lost_) try {
      run_deferred();
      if (options_.node != 0) known = all_ends();
      if (!lost_) leave_store(*store_, job_store_.ticket(options_.node), how);
      if (options_.node == 0) wait_for_others(wait_for_late);
    } catch (const CommError&) {
      lost_ = true;
    } catch (const Error&) {
    }
  return known.empty() ? all_ends() : known;
}

void Nodes::wait_for_others(bool wait_for_late) {
  const Deadline late = Deadline::after(wait_for_late ? options_.grace : Milliseconds(0));
  const Deadline deadline = Deadline::after(options_.grace + kEndsLate);
  for (int node = 0; node < options_.nodes; ++node) {
    if (!beats_[static_cast<std::size_t>(node)].silent.empty()) continue;  // it has been waited for
    try {
      store_->get(node_key("node", node), late);
      if (wait_until_left(*store_, job_store_.ticket(node), deadline) == Leaving::comes_again) there_.push_back(node);
    } catch (const TimeoutError&) {
    }
  }
}

}  // namespace lockstep::launch
