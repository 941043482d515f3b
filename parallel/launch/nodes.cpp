#include "lockstep/parallel/launch/nodes.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <charconv>
#include <utility>

#include "lockstep/parallel/comm/store/ended_ranks.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

constexpr Milliseconds kBeat{500}, kLate{2'000};
// What kEnding says: a rank has failed, all is well (along with kEnd), or, as kEnd, the code and the reason.
constexpr char kEnding[] = "lockstep-run/ending", kRank[] = "rank", kWell[] = "well";
constexpr char kEnd[] = "lockstep-run/end", kShape[] = "lockstep-run/shape";

End parse_end(const std::string& text) {
  End end{.code = 1};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), end.code);
  if (error == std::errc() && stop != text.data() + text.size())
    end.message.assign(stop + 1, text.data() + text.size());
  if (const auto line = end.message.find('\n'); line != std::string::npos) {
    end.details = end.message.substr(line);
    end.message.resize(line);
  }
  return end;
}

std::string text_of(const End& end) { return cat(end.code, ' ', end.message, end.details); }

End end_for(const std::optional<Nodes::Ending>& ending, const std::vector<RankEnd>& ranks) {
  if (!ending) return {};
  if (ending->reason) return *ending->reason;
  End end = end_of(ranks);
  return end.code != 0 ? end : End{1, "a rank has failed, and its node does not say which"};
}

}  // namespace

Nodes::Nodes(const Options& options, std::string token, const std::string& run_id)
    : options_(options),
      token_(std::move(token)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      beats_(static_cast<std::size_t>(options.nodes)) {
  if (options.nodes == 1) {
    server_ = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.token = token_});
    address_ = server_->address();
    store_ = make_tcp_store({.address = address_, .token = token_});
    return;
  }
  address_ = options.master;
  const auto master = detail::parse_host_port("--master", options.master);
  if (options.node == 0)
    server_ = std::make_unique<TcpStoreServer>(
        TcpStoreServerOptions{.address = master.host, .port = master.port, .token = token_});
  store_ = make_tcp_store(
      {.address = address_, .token = token_, .connect_timeout = options.timeout, .timeout = options.timeout});
  const std::string shape = cat(options.nodes, " nodes of ", options.ranks, " ranks");
  // Node 0 says it, so that whoever comes first, it is the other one that does not fit.
  if (options.node == 0) store_->set(kShape, shape);
  const std::string first = store_->get(kShape, Deadline::after(options.timeout));
  LOCKSTEP_CHECK(first == shape, "expected the same on all nodes, got ", shape, " on node ", options.node, " and ",
                 first, " on another");
  LOCKSTEP_CHECK(store_->compare_set(key("node", options.node), "", run_id) == run_id,
                 "expected one lockstep-run per node, got two with --node-rank ", options.node);
}

Nodes::~Nodes() {
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
}

std::string Nodes::key(const char* name, int node) const { return cat("lockstep-run/", name, '/', node); }

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
    if (mine_) end = end_for(ending_, *mine_);
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
  if (options_.nodes == 1) return conclude(Ending{std::move(reason)});
  {
    const std::lock_guard lock(mutex_);
    own_ending_ = Ending{reason};
  }
  defer([this, text = reason ? text_of(*reason) : kRank] { store_->compare_set(kEnding, "", text); });
}

void Nodes::rank_ended(int rank, const std::string& how) {
  defer([this, text = cat(rank, ' ', how)] {
    try {
      store_->set(detail::ended_key(store_->add(detail::kEndedCount, 1)), text);
    } catch (const InvalidArgument&) {  // the ranks have filled the store, and do without
    }
  });
  if (options_.nodes == 1) try {  // the store is in this process, and nobody watches
      run_deferred();
    } catch (const Error&) {
    }
}

void Nodes::report(std::vector<RankEnd> ranks) {
  if (options_.nodes > 1) defer([this, text = to_text(ranks)] { store_->set(key("report", options_.node), text); });
  {
    const std::lock_guard lock(mutex_);
    mine_ = std::move(ranks);
  }
  if (options_.nodes == 1 || lost_) conclude_alone();
}

void Nodes::watch() {
  if (options_.nodes == 1) return;
  watcher_ = std::thread([this] {
    try {
      while (!stop_ && !look()) {
      }
    } catch (const Error& error) {
      Ending ending{End{1, cat("lost the other nodes: ", error.what())}};
      {
        const std::lock_guard lock(mutex_);
        if (own_ending_) ending = *own_ending_;
      }
      conclude(std::move(ending));
      lost_ = true;
      conclude_alone();
    }
  });
}

// Whether the job has ended.
bool Nodes::look() {
  store_->add(key("beat", options_.node), 1);
  run_deferred();
  if (options_.node == 0) watch_over();
  try {
    if (!ending()) {
      const std::string first = store_->get(kEnding, Deadline::after(kBeat));
      if (first != kWell) conclude(Ending{first == kRank ? std::nullopt : std::optional(parse_end(first))});
    }
    conclude(parse_end(store_->get(kEnd, Deadline::after(kBeat))));
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
  for (int node = 0; node < options_.nodes; ++node) {
    Beat& beat = beats_[static_cast<std::size_t>(node)];
    if (const auto report = store_->try_get(key("report", node))) {
      beat.silent.clear();
      for (RankEnd& each : parse_ends(*report)) ranks.push_back(std::move(each));
      continue;
    }
    const std::string count = store_->try_get(key("beat", node)).value_or("");
    if (count != beat.count) beat = {count};
    if (Clock::now() - beat.since >= options_.timeout && beat.silent.empty()) {
      beat.silent = cat("node ", node, count.empty() ? " did not come within " : " was silent for ",
                        std::chrono::duration<double>(options_.timeout).count(), " s");
      store_->compare_set(kEnding, "", text_of({1, beat.silent}));
    }
    // Who comes when the job is ending is told, and not waited for.
    if (!count.empty() && beat.silent.empty()) ++missing;
    all_came = all_came && !count.empty();
  }
  const auto first = store_->try_get(kEnding);
  if (!first) {
    if (missing > 0 || !all_came) return;
    store_->compare_set(kEnd, "", "0 ");
    store_->compare_set(kEnding, "", kWell);
  } else if (*first != kRank && *first != kWell) {
    store_->compare_set(kEnd, "", *first);
  } else if (missing == 0) {
    End end = end_for(Ending{}, ranks);
    for (const Beat& beat : beats_)  // whose ranks are not among them
      if (!beat.silent.empty()) end.details += cat("\n  ", beat.silent);
    store_->compare_set(kEnd, "", text_of(end));
  }
}

void Nodes::leave(bool wait_for_late) {
  if (watcher_.joinable()) watcher_.join();  // it goes by itself once the end is known, and `beats_` is its own
  if (options_.nodes == 1 || lost_) return;
  try {
    store_->set(key("left", options_.node), "");
    if (options_.node != 0) return;
    const Deadline late = Deadline::after(wait_for_late ? options_.grace : Milliseconds(0));
    const Deadline deadline = Deadline::after(options_.grace + kLate);
    for (int node = 0; node < options_.nodes; ++node) {
      if (!beats_[static_cast<std::size_t>(node)].silent.empty()) continue;  // it has been waited for
      try {
        store_->get(key("node", node), late);
        store_->get(key("left", node), deadline);
      } catch (const TimeoutError&) {
      }
    }
  } catch (const Error&) {
  }
}

}  // namespace lockstep::launch
