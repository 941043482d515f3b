#include "lockstep/parallel/launch/job_store.h"

#include <unistd.h>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/will.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

constexpr char kShape[] = "lockstep-run/shape";
constexpr char kComesAgain[] = "comes again", kForGood[] = "for good";  // not empty: a will would not see it

std::string left_key(int ticket) { return node_key("left", ticket); }
Leaving parse_leaving(const std::string& text) {
  return text == kComesAgain ? Leaving::comes_again : Leaving::for_good;
}

std::string shape_of(const Options& options) {
  std::string shape = cat(options.nodes, " nodes of ", options.ranks, " ranks");
  if (options.keep_going) shape += cat(" that keep going, at least ", options.min_ranks);
  if (options.restarts > 0) shape += cat(" with ", options.restarts, " restarts");
  if (options.restarts > 0 && options.min_ranks > 0) shape += cat(", at least ", options.min_ranks);
  if (options.restarts > 0 && options.max_ranks > 0) shape += cat(", at most ", options.max_ranks);
  return shape;
}

}  // namespace

std::string token_of_round(const Options& options, const std::string& token, const std::string& job) {
  if (options.restarts == 0) return token;
  return detail::to_hex(detail::hmac_sha256(token, cat("lockstep-run round ", options.round, " of ", job)));
}

JobStore open_store(const Options& options, const std::string& token, const std::string& token_of_ranks, int listener) {
  JobStore store;
  store.token = token_of_ranks;
  if (!options.several()) {
    store.server = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.token = store.token});
    store.address = store.server->address();
    store.client = make_tcp_store({.address = store.address, .token = store.token});
    return store;
  }
  store.address = options.master;
  const auto master = detail::parse_host_port("--master", options.master);
  if (options.node == 0)
    store.server = std::make_unique<TcpStoreServer>(
        TcpStoreServerOptions{.address = master.host,
                              .port = master.port,
                              .listener = listener,
                              .token = token,
                              .other_token = token == token_of_ranks ? "" : token_of_ranks});
  store.client = make_tcp_store(
      {.address = store.address, .token = token, .connect_timeout = options.timeout, .timeout = options.timeout});
  return store;
}

JobStore open_fixed_store(const Options& options, const std::string& token, const std::string& job) {
  JobStore store = open_store(options, token, token_of_round(options, token, job));
  if (!options.several()) return store;
  agree_on_options(*store.client, options);
  claim_node(*store.client, options, job);
  if (options.node != 0) leave_will(store, options, options.node);  // of the number that is its own
  return store;
}

std::string node_key(const char* name, int node) { return cat("lockstep-run/", name, '/', node); }

void leave_store(Store& store, int ticket, Leaving how) {
  store.set(left_key(ticket), how == Leaving::comes_again ? kComesAgain : kForGood);
}

std::optional<Leaving> has_left(Store& store, int ticket) {
  const auto text = store.try_get(left_key(ticket));
  return text ? std::optional(parse_leaving(*text)) : std::nullopt;
}

Leaving wait_until_left(Store& store, int ticket, Deadline deadline) {
  return parse_leaving(store.get(left_key(ticket), deadline));
}

void leave_will(JobStore& store, const Options& options, int ticket) {
  // With the token of the round: another round's store would take it for one of its own tickets.
  store.will = detail::leave_will(
      {.address = store.address, .token = store.token, .connect_timeout = options.timeout, .timeout = options.timeout},
      left_key(ticket), kForGood);
}

void agree_on_options(Store& store, const Options& options) {
  const std::string shape = shape_of(options);
  // Node 0 says it, so that whoever comes first, it is the other one that does not fit.
  if (options.node == 0) store.set(kShape, shape);
  const std::string first = store.get(kShape, Deadline::after(options.timeout));
  LOCKSTEP_CHECK(first == shape, "expected the same on all nodes, got ", shape, " on node ", options.node, " and ",
                 first, " on another");
}

void claim_node(Store& store, const Options& options, const std::string& run_id) {
  LOCKSTEP_CHECK(store.compare_set(node_key("node", options.node), "", run_id) == run_id,
                 "expected one lockstep-run per node, got two with --node-rank ", options.node);
  store.set(node_key("host", options.node), host_name());
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "?";
}

}  // namespace lockstep::launch
