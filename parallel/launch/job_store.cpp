#include "lockstep/parallel/launch/job_store.h"

#include <unistd.h>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {

JobStore open_store(const Options& options, const std::string& token) {
  JobStore store;
  if (options.nodes == 1) {
    store.server = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.token = token});
    store.address = store.server->address();
    store.client = make_tcp_store({.address = store.address, .token = token});
    return store;
  }
  store.address = options.master;
  const auto master = detail::parse_host_port("--master", options.master);
  if (options.node == 0)
    store.server = std::make_unique<TcpStoreServer>(
        TcpStoreServerOptions{.address = master.host, .port = master.port, .token = token});
  store.client = make_tcp_store(
      {.address = store.address, .token = token, .connect_timeout = options.timeout, .timeout = options.timeout});
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
