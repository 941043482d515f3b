#include "lockstep/parallel/launch/job_store.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {

std::string token_of_round(const Options& options, const std::string& token) {
  if (options.restarts == 0) return token;
  return detail::to_hex(detail::hmac_sha256(token, cat("lockstep-run round ", options.round)));
}

namespace {

// Waits for the store of this round or of one that is to come after it: while node 0 has that of the round before, it
// refuses the others' tokens.
std::shared_ptr<Store> join(Options& options, JobStore& store, const std::string& token) {
  if (options.node == 0 || options.restarts == 0)
    return make_tcp_store({.address = store.address,
                           .token = store.token,
                           .connect_timeout = options.timeout,
                           .timeout = options.timeout});
  const Deadline deadline = Deadline::after(options.timeout);
  const int first = options.round;
  while (true) {
    for (options.round = first; options.round <= options.restarts; ++options.round) try {
        store.token = token_of_round(options, token);
        return make_tcp_store({.address = store.address,
                               .token = store.token,
                               .connect_timeout = std::min(options.timeout, Milliseconds(1'000)),
                               .timeout = options.timeout});
      } catch (const CommError&) {
        if (deadline.passed()) throw;
      }
    std::this_thread::sleep_for(Milliseconds(20));
  }
}

}  // namespace

JobStore open_store(Options& options, const std::string& token) {
  JobStore store;
  store.token = token_of_round(options, token);
  if (options.nodes == 1) {
    store.server = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.token = store.token});
    store.address = store.server->address();
    store.client = make_tcp_store({.address = store.address, .token = store.token});
    return store;
  }
  store.address = options.master;
  const auto master = detail::parse_host_port("--master", options.master);
  if (options.node == 0)
    store.server = std::make_unique<TcpStoreServer>(
        TcpStoreServerOptions{.address = master.host, .port = master.port, .token = store.token});
  store.client = join(options, store, token);
  return store;
}

std::string node_key(const char* name, int node) { return cat("lockstep-run/", name, '/', node); }

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
