#include "lockstep/parallel/launch/membership.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <utility>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/ended_ranks.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/launch/ends.h"
#include "lockstep/parallel/launch/job.h"
#include "lockstep/parallel/launch/times.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

// What node 0 says first: "<round> <job>". And last, where there is no round any more: the end of the job.
constexpr char kBegun[] = "lockstep-run/begun", kOver[] = "lockstep-run/over";
constexpr Milliseconds kLook{50}, kBeat{500}, kLate{2'000}, kAttempt{2'000};

// Waits so long, or until a signal comes that ends the job. Others have nobody to be passed on to.
std::optional<End> idle(Milliseconds time) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) sigaddset(&set, signal);
  const Deadline deadline = Deadline::after(time);
  int signal = 0;
  do {
    const auto left = deadline.left().count();
    const timespec wait{left / 1000, left % 1000 * 1'000'000};
    signal = ::sigtimedwait(&set, nullptr, &wait);
    if (signal == SIGTSTP) ::raise(SIGSTOP);
    if (signal > 0 && signal != SIGTSTP && signal != SIGUSR1 && signal != SIGUSR2) return end_by_signal(signal);
  } while (signal > 0 || !deadline.passed());
  return std::nullopt;
}

// Launchers show the job's token. On the loopback interface there need not be one, but the ranks' must be another's.
std::string token_of_launchers(const Options& options, std::string token) {
  if (!token.empty()) return token;
  for (const auto& endpoint : detail::resolve(detail::parse_host_port("--master", options.master)))
    LOCKSTEP_CHECK(endpoint.loopback(), "expected a token (--token-file, LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN) for ",
                   "an address beyond the loopback, got none for ", options.master);
  return detail::to_hex(detail::hmac_sha256(token, "lockstep-run"));
}

// Known for certain: the machine is there, and refuses connections.
bool nobody_listens(const std::string& address) {
  const auto endpoints = detail::resolve(detail::parse_host_port("--master", address));
  return std::all_of(endpoints.begin(), endpoints.end(), [](const detail::Endpoint& each) {
    detail::Fd connected;
    return detail::connect_to(each, Deadline::after(kAttempt), connected) == ECONNREFUSED;
  });
}

std::string names_of(const std::vector<Arrival>& nodes) {
  std::string names;
  for (const Arrival& each : nodes) names += cat(names.empty() ? "" : ", ", each.node_rank);
  return names;
}

}  // namespace

Membership::Membership(const Options& options, std::string token, std::string run_id)
    : options_(options), token_(token_of_launchers(options, std::move(token))), run_id_(std::move(run_id)) {
  for (int node = 0; node < std::min(options.nodes, static_cast<int>(most_nodes())); ++node) expected_.insert(node);
}

std::size_t Membership::least_nodes() const {
  const int least = options_.min_ranks > 0 ? options_.min_ranks : options_.world_size();
  return std::min(static_cast<std::size_t>((least + options_.ranks - 1) / options_.ranks), most_nodes());
}

std::size_t Membership::most_nodes() const {
  const int most = options_.max_ranks > 0 ? options_.max_ranks : options_.world_size();
  return static_cast<std::size_t>(most / options_.ranks);
}

std::variant<Meeting, End> Membership::next(const std::optional<End>& stop) {
  return options_.node == 0 ? form(stop) : come(stop);
}

Meeting Membership::begin(int round, const Plan& plan, int place, JobStore store) {
  Meeting meeting{options_, std::move(store)};
  meeting.options.newcomer = round_ < 0 && round > 0;
  meeting.options.round = round_ = round;
  meeting.options.restarts_used = plan.restarts_used;
  meeting.options.nodes = static_cast<int>(plan.members.size());
  meeting.options.node = place;
  for (const Arrival& each : plan.members) meeting.options.node_ranks.push_back(each.node_rank);
  for (const Arrival& each : plan.members) meeting.store.tickets.push_back(each.ticket);
  meeting.store.token = token_of_round(meeting.options, token_, job_);
  // With the token of the round: with the job's it would not notice that it is connected to the store of a later one.
  if (place != 0)
    meeting.store.client = make_tcp_store({.address = options_.master,
                                           .token = meeting.store.token,
                                           .connect_timeout = options_.timeout,
                                           .timeout = options_.timeout});
  claim_node(*meeting.store.client, meeting.options, run_id_);
  return meeting;
}

// ---- node 0

std::vector<Arrival> Membership::choose(const std::vector<Arrival>& present) const {
  std::vector<Arrival> members{{.ticket = 0, .node_rank = 0, .host = host_name()}};
  for (const bool expected : {true, false})
    for (const Arrival& each : present)
      if (each.node_rank != 0 && expected_.contains(each.node_rank) == expected && members.size() < most_nodes())
        members.push_back(each);
  std::sort(members.begin(), members.end(), [](auto& a, auto& b) { return a.node_rank < b.node_rank; });
  return members;
}

std::string Membership::too_few(const std::vector<Arrival>& members) const {
  return cat(members.size() * static_cast<std::size_t>(options_.ranks), " ranks (nodes ", names_of(members),
             "), at least ", least_nodes() * static_cast<std::size_t>(options_.ranks), " are asked for");
}

std::variant<Meeting, End> Membership::form(std::optional<End> stop) {
  job_ = run_id_;
  Options options = options_;
  const int round = options.round = round_ + 1;
  JobStore store = open_store(options, token_, token_of_round(options, token_, job_), listener_.get());
  if (!listener_) listener_ = detail::Fd(::fcntl(store.server->listener(), F_DUPFD_CLOEXEC, 0));
  store_ = store.client;
  arrivals_.emplace(store_, options_.timeout);
  agree_on_options(*store_, options_);
  store_->set(kBegun, cat(round, ' ', job_));
  const Deadline come = Deadline::after(options_.timeout), join = Deadline::after(options_.join_timeout);
  std::string said;
  while (true) {
    arrivals_->look();
    const std::vector<Arrival> present = arrivals_->present(), members = choose(present);
    if (!stop)
      if (const auto text = store_->try_get(kOver)) stop = parse_end(*text);
    if (stop) return over(*stop, present);
    const bool all = std::all_of(expected_.begin(), expected_.end(), [&](int node) {
      return arrivals_->have_left(node) ||
             std::any_of(members.begin(), members.end(), [&](auto& each) { return each.node_rank == node; });
    });
    const bool enough = members.size() >= least_nodes();
    if (enough && (all || come.passed())) {
      plan_ = {restarts_used_, members};
      publish(*store_, plan_);
      return begin(round, plan_, 0, std::move(store));
    }
    if (!enough && join.passed())
      return over({.code = 1,
                   .message = cat("round ", round, " has ", too_few(members), ", and no others came within ",
                                  seconds(options_.join_timeout), " s (--join-timeout)"),
                   .next = End::Next::none},
                  present);
    const std::string few = enough || !(come.passed() || all) ? said : too_few(members);
    if (std::exchange(said, few) != few) say_now(cat("round ", round, " waits for nodes: it has ", few));
    stop = idle(kLook);
  }
}

std::optional<End> Membership::newcomers() {
  arrivals_->look();
  if (plan_.members.size() >= most_nodes()) return std::nullopt;
  if (store_->try_get(detail::kEndedCount)) return std::nullopt;  // it is ending
  for (const Arrival& each : arrivals_->present()) {
    const bool there = std::any_of(plan_.members.begin(), plan_.members.end(),
                                   [&](auto& member) { return member.node_rank == each.node_rank; });
    if (!there)
      return End{.message = cat("node ", each.node_rank, " (", each.host, ") has come"), .next = End::Next::regroup};
  }
  return std::nullopt;
}

void Membership::ended(const End& end, const std::vector<int>& places) {
  if (end.next == End::Next::restart) ++restarts_used_;
  if (options_.node != 0) return;
  arrivals_->look();
  std::set<int> there;
  for (const int place : places) there.insert(plan_.members[static_cast<std::size_t>(place)].node_rank);
  expected_ = there;
  for (const Arrival& each : arrivals_->present())
    if (plan_.place_of(each.ticket) < 0) expected_.insert(each.node_rank);
  // No more than fit: those that were there come first.
  for (auto last = expected_.end(); expected_.size() > most_nodes() && last != expected_.begin();)
    if (!there.contains(*--last)) last = expected_.erase(last);
}

void Membership::finish(const End& end) {
  if (options_.node != 0) return;
  arrivals_->look();
  std::vector<Arrival> waiting;
  for (const Arrival& each : arrivals_->present())
    if (plan_.place_of(each.ticket) < 0) waiting.push_back(each);
  over(end, waiting);
}

End Membership::over(const End& end, const std::vector<Arrival>& wait_for) {
  store_->compare_set(kOver, "", to_text(end));
  const Deadline deadline = Deadline::after(kLate + options_.grace);
  for (const Arrival& each : wait_for) try {
      wait_until_left(*store_, each.ticket, deadline);
    } catch (const TimeoutError&) {
    }
  return end;
}

// ---- the others

std::variant<Meeting, End> Membership::come(const std::optional<End>& stop) {
  Deadline reach = Deadline::after(options_.timeout);
  while (true) {
    std::string gone;
    try {
      if (job_.empty() || !nobody_listens(options_.master)) return come_once(stop, reach);
      gone = cat("nobody listens at ", options_.master, " any more");
    } catch (const CommError& error) {  // it serves the next round, or is out of reach
      if (reach.passed() && job_.empty()) throw;
      if (reach.passed()) gone = error.what();
    }
    if (!gone.empty())
      return End{.code = 1,
                 .message = cat("lost node 0, which has the job's store: nobody goes on without it: ", gone),
                 .next = End::Next::none};
    if (const auto signal = idle(kLook)) return *signal;
  }
}

// Until there is a store of a round that this node was not of.
std::variant<int, End> Membership::wait_for_round(Store& store, Deadline& reach) {
  while (true) {
    if (const auto begun = store.try_get(kBegun)) {
      std::istringstream words(*begun);
      int round = 0;
      std::string job;
      words >> round >> job;
      if (!job_.empty() && job != job_)
        return End{.code = 1,
                   .message = "node 0 was started anew, and has another job: nobody goes on without the first",
                   .next = End::Next::none};
      job_ = job;
      if (round > round_) return round;
    }
    if (const auto text = store.try_get(kOver)) return parse_end(*text);
    reach = Deadline::after(options_.timeout);
    if (const auto signal = idle(kLook)) return *signal;
  }
}

std::variant<Meeting, End> Membership::come_once(const std::optional<End>& stop, Deadline& reach) {
  JobStore job;
  job.address = options_.master;
  job.client = make_tcp_store({.address = options_.master,
                               .token = token_,
                               .connect_timeout = std::min(reach.left(), kAttempt),
                               .timeout = options_.timeout});
  Store& store = *job.client;
  const auto found = wait_for_round(store, reach);
  if (const End* const end = std::get_if<End>(&found)) return *end;
  const int round = std::get<int>(found);
  Options options = options_;
  options.round = round;
  job.token = token_of_round(options, token_, job_);
  agree_on_options(store, options_);
  if (stop) {
    store.compare_set(kOver, "", to_text(*stop));
    return *stop;
  }
  std::optional<End> signal;
  bool told = false;
  const auto arrived = arrive(job, options_, [&](Milliseconds time) {
    if (!std::exchange(told, true))
      say_now(cat("another lockstep-run came with --node-rank ", options_.node,
                  ": this one waits until that one has gone, or is silent for ", seconds(options_.timeout), " s"));
    signal = idle(time);
    return !signal;
  });
  if (!arrived) return *signal;
  const Arrival& mine = *arrived;
  bool waits = false;
  while (true) {
    stay(store, mine);
    reach = Deadline::after(options_.timeout);
    if (waits) signal = idle(kBeat);
    const auto plan = find_plan(store, Deadline::after(waits ? Milliseconds(0) : kBeat));
    const int place = plan ? plan->place_of(mine.ticket) : -1;
    if (place >= 0) return begin(round, *plan, place, std::move(job));
    if (!signal) signal = idle(Milliseconds(0));
    if (signal) {
      if (!plan) store.compare_set(kOver, "", to_text(*signal));
      leave_store(store, mine.ticket, Leaving::for_good);
      return *signal;
    }
    if (const auto text = store.try_get(kOver)) {
      leave_store(store, mine.ticket, Leaving::for_good);
      End end = parse_end(*text);
      if (plan)
        end.message = cat("the job has ended while this node waited: ", end.message.empty() ? "well" : end.message);
      return end;
    }
    if (plan && !std::exchange(waits, true))
      say_now(cat("round ", round, " is under way with ",
                  plan->members.size() * static_cast<std::size_t>(options_.ranks), " ranks (nodes ",
                  names_of(plan->members), "): node ", options_.node, " waits for ",
                  plan->members.size() < most_nodes()
                      ? "the next round"
                      : cat("one of them to go, since more than ",
                            most_nodes() * static_cast<std::size_t>(options_.ranks), " are not asked for")));
  }
}

}  // namespace lockstep::launch
