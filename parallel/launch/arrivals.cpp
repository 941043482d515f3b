#include "lockstep/parallel/launch/arrivals.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

constexpr char kTickets[] = "lockstep-run/tickets", kPlan[] = "lockstep-run/plan";
constexpr Milliseconds kLook{200};
constexpr int kSignsOfLife = 2;  // the first may have been on its way when its sender ended

std::string text_of(const Arrival& each) { return cat(each.ticket, ' ', each.node_rank, ' ', each.host, '\n'); }

Arrival parse_arrival(const std::string& line) {
  Arrival arrival;
  std::istringstream(line) >> arrival.ticket >> arrival.node_rank >> arrival.host;
  return arrival;
}

std::string holder_key(int node_rank) { return node_key("holder", node_rank); }

// Changes as long as the one with this ticket is there.
std::string sign_of_life(Store& store, int ticket) {
  const auto plan = find_plan(store, Deadline::after(Milliseconds(0)));
  const int place = plan ? plan->place_of(ticket) : -1;
  return cat(store.try_get(node_key("present", ticket)).value_or(""), ' ',
             place < 0 ? "" : store.try_get(node_key("beat", place)).value_or(""));
}

}  // namespace

std::optional<Arrival> arrive(JobStore& job, const Options& options, const std::function<bool(Milliseconds)>& pause) {
  Store& store = *job.client;
  const int node_rank = options.node;
  const Arrival mine{static_cast<int>(store.add(kTickets, 1)), node_rank, host_name()};
  leave_will(job, options, mine.ticket);
  const std::string ticket = std::to_string(mine.ticket);
  std::string holder, life;
  int signs = 0;
  auto since = Clock::now();
  for (std::string found = store.compare_set(holder_key(node_rank), "", ticket); found != ticket;) {
    const std::string now = sign_of_life(store, std::stoi(found));
    if (std::exchange(holder, found) != found)
      signs = 0;
    else if (now != life)
      ++signs;
    if (std::exchange(life, now) != now) since = Clock::now();
    LOCKSTEP_CHECK(signs < kSignsOfLife, "expected one lockstep-run per node, got two with --node-rank ", node_rank);
    const bool gone = has_left(store, std::stoi(found)) || Clock::now() - since >= options.timeout;
    found = gone ? store.compare_set(holder_key(node_rank), found, ticket)
                 : store.try_get(holder_key(node_rank)).value_or(found);
    if (found != ticket && !pause(kLook)) return std::nullopt;
  }
  store.set(node_key("arrived", mine.ticket), text_of(mine));
  stay(store, mine);
  return mine;
}

void stay(Store& store, const Arrival& arrival) {
  const auto holder = store.try_get(holder_key(arrival.node_rank));
  if (!holder) throw CommError(0, "store", "it is that of another round");
  LOCKSTEP_CHECK(*holder == std::to_string(arrival.ticket),
                 "expected one lockstep-run per node, got another with --node-rank ", arrival.node_rank,
                 " while this one was silent");
  if (has_left(store, arrival.ticket)) throw CommError(0, "store", "it takes this node for one that has ended");
  store.add(node_key("present", arrival.ticket), 1);
}

void Arrivals::look() {
  const std::string tickets = store_->try_get(kTickets).value_or("0");
  seen_.resize(static_cast<std::size_t>(std::stoi(tickets)));
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    Seen& each = seen_[i];
    const int ticket = static_cast<int>(i) + 1;
    if (each.left) continue;
    if (each.arrival.ticket == 0)
      if (const auto text = store_->try_get(node_key("arrived", ticket))) each.arrival = parse_arrival(*text);
    const std::string beat = store_->try_get(node_key("present", ticket)).value_or("");
    if (std::exchange(each.beat, beat) != beat) each.since = Clock::now();
    each.left = has_left(*store_, ticket).has_value();
  }
}

std::vector<Arrival> Arrivals::present() const {
  std::map<int, Arrival> nodes;  // who came later has taken the number over
  for (const Seen& each : seen_)
    if (each.arrival.ticket > 0 && !each.left && Clock::now() - each.since < timeout_)
      nodes[each.arrival.node_rank] = each.arrival;
  std::vector<Arrival> all;
  for (const auto& [node_rank, arrival] : nodes) all.push_back(arrival);
  return all;
}

bool Arrivals::have_left(int node_rank) const {
  bool any = false;
  for (const Seen& each : seen_) {
    if (each.arrival.ticket == 0 || each.arrival.node_rank != node_rank) continue;
    if (!each.left) return false;
    any = true;
  }
  return any;
}

int Plan::place_of(int ticket) const {
  const auto found = std::find_if(members.begin(), members.end(), [&](auto& each) { return each.ticket == ticket; });
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

void publish(Store& store, const Plan& plan) {
  std::string text = cat(plan.restarts_used, '\n');
  for (const Arrival& each : plan.members) text += text_of(each);
  store.set(kPlan, text);
}

std::optional<Plan> find_plan(Store& store, Deadline deadline) try {
  std::istringstream lines(store.get(kPlan, deadline));
  Plan plan;
  std::string line;
  if (std::getline(lines, line)) plan.restarts_used = std::stoi(line);
  while (std::getline(lines, line)) plan.members.push_back(parse_arrival(line));
  return plan;
} catch (const TimeoutError&) {
  return std::nullopt;
}

}  // namespace lockstep::launch
