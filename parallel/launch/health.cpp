#include "lockstep/parallel/launch/health.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/launch/health_report.h"
#include "lockstep/parallel/launch/job_store.h"
#include "lockstep/parallel/launch/node_facts.h"
#include "lockstep/parallel/launch/times.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

constexpr int kClockQuestions = 8, kSmall = 64, kLarge = 8;
// What node 0 says, in parts, when all have been looked at: "fit" or "unfit", the table, and the JSON after that.
constexpr char kVerdict[] = "lockstep-run/health", kEndOfTable = '\0';

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

std::string question(int node, int n) { return node_key(cat("question/", n).c_str(), node); }
std::string answer(int node, int n) { return node_key(cat("answer/", n).c_str(), node); }

// Node 0 answers: what its clock says. The quickest answer says it best.
void compare_clocks(Store& store, NodeHealth& mine, Deadline deadline) {
  double best = -1;
  for (int n = 0; n < kClockQuestions; ++n) {
    const auto asked = Clock::now();  // first, so that what is between them counts as error
    const double asked_ms = wall_clock<double>();
    store.set(question(mine.node, n), "");
    const double theirs_ms = std::stod(store.get(answer(mine.node, n), deadline));
    const double took = milliseconds(Clock::now() - asked);
    if (best >= 0 && took >= best) continue;
    best = took;
    mine.clock_ms = asked_ms + took / 2 - theirs_ms;
    mine.clock_error_ms = took / 2;
  }
}

void answer_clocks(Store& store, int node, Deadline deadline) {
  for (int n = 0; n < kClockQuestions; ++n) {
    store.get(question(node, n), deadline);
    char text[64];
    std::snprintf(text, sizeof text, "%.6f", wall_clock<double>());
    store.set(answer(node, n), text);
  }
}

// The median of small requests, and the sum of large ones.
void measure_store(Store& store, NodeHealth& mine) {
  const std::string key = node_key("large", mine.node);
  std::vector<double> times;
  for (int i = 0; i < kSmall; ++i) {
    const auto began = Clock::now();
    store.try_get(node_key("nothing", mine.node));
    times.push_back(milliseconds(Clock::now() - began));
  }
  std::nth_element(times.begin(), times.begin() + kSmall / 2, times.end());
  mine.latency_us = times[kSmall / 2] * 1e3;
  const std::string large(Store::kMaxValueBytes, 'x');
  const auto began = Clock::now();
  for (int i = 0; i < kLarge; ++i) {
    store.set(key, large);
    store.try_get(key);
  }
  mine.megabytes_per_second =
      2.0 * kLarge * static_cast<double>(large.size()) / 1e3 / milliseconds(Clock::now() - began);
  store.erase(key);
}

// Node 0: one after the other, so that they do not measure each other.
std::vector<NodeHealth> ask_all(Store& store, const Options& options, NodeHealth mine) {
  std::vector<NodeHealth> nodes{std::move(mine)};
  const Deadline come = Deadline::after(options.timeout);
  for (int node = 1; node < options.nodes; ++node) {
    const char* what = "did not come within ";
    try {
      if (!store.try_get(node_key("host", node))) store.get(node_key("host", node), come);
      what = "was silent for ";
      const Deadline deadline = Deadline::after(options.timeout);
      store.set(node_key("turn", node), "");
      answer_clocks(store, node, deadline);
      nodes.push_back(parse_health(store.get(node_key("health", node), deadline), node));
    } catch (const TimeoutError&) {
      const std::string host = store.try_get(node_key("host", node)).value_or("?");
      nodes.push_back({.node = node, .host = host, .silent = cat(what, seconds(options.timeout), " s")});
    }
  }
  return nodes;
}

// Node 0 goes when the others know.
void leave(Store& store, const Options& options, const std::vector<NodeHealth>& nodes) {
  const Deadline deadline = Deadline::after(options.grace);
  for (const NodeHealth& node : nodes) try {
      if (node.node != 0 && node.silent.empty()) wait_until_left(store, node.node, deadline);
    } catch (const TimeoutError&) {
    }
}

// With thousands of nodes it is more than one value of the store holds.
void publish(Store& store, const std::string& verdict) {
  int parts = 0;
  for (std::size_t done = 0; done < verdict.size(); done += Store::kMaxValueBytes)
    store.set(cat(kVerdict, '/', parts++), verdict.substr(done, Store::kMaxValueBytes));
  store.set(kVerdict, std::to_string(parts));
}

std::string published(Store& store, Deadline deadline) {
  const int parts = std::stoi(store.get(kVerdict, deadline));
  std::string verdict;
  for (int part = 0; part < parts; ++part) verdict += store.get(cat(kVerdict, '/', part), deadline);
  return verdict;
}

int tell(const std::string& verdict, JsonFile& file) {
  const std::size_t line = verdict.find('\n'), end = verdict.find(kEndOfTable);
  const std::string unwritten = file.write(verdict.substr(end + 1));
  std::fwrite(verdict.data() + line + 1, 1, end - line - 1, stdout);
  if (std::fflush(stdout) != 0) throw Error("cannot write the table to standard output");
  if (!unwritten.empty()) throw Error(unwritten);
  return verdict.starts_with("fit") ? 0 : 1;
}

}  // namespace

int check_health(const Options& asked, const std::string& token, JsonFile& file) {
  Options options = asked;
  NodeHealth mine = look_at_this_node(options);
  const JobStore job_store = open_store(options, token, token);
  Store& store = *job_store.client;
  claim_node(store, options, detail::to_hex(detail::random_bytes(8)));
  if (options.node == 0) {
    measure_store(store, mine);
    const Health health = judge(options, ask_all(store, options, mine));
    const std::string verdict =
        cat(health.unfit.empty() ? "fit" : "unfit", '\n', table(health), kEndOfTable, json(health));
    publish(store, verdict);
    leave(store, options, health.nodes);
    return tell(verdict, file);
  }
  // Those before this one may use up their time first.
  const Deadline turn = Deadline::after(options.timeout * (options.nodes + 1));
  store.get(node_key("turn", options.node), turn);
  compare_clocks(store, mine, turn);
  measure_store(store, mine);
  store.set(node_key("health", options.node), to_text(mine));
  const std::string verdict = published(store, turn);
  leave_store(store, options.node, Leaving::for_good);
  return tell(verdict, file);
}

}  // namespace lockstep::launch
