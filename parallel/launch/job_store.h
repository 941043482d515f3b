// The store of a job: node 0's launcher serves it, all launchers and all ranks use it.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

struct JobStore {
  std::string address;                     // "host:port"
  std::unique_ptr<TcpStoreServer> server;  // on node 0
  std::shared_ptr<Store> client;
};

// Serves it, or waits for it as long as the options say. With one node it is on the loopback interface. Throws
// CommError where it cannot be served or reached.
JobStore open_store(const Options& options, const std::string& token);

// The key under which node `node` says `name`.
std::string node_key(const char* name, int node);

// Takes the number of the node for the lockstep-run with this name; InvalidArgument when another one has it.
void claim_node(Store& store, const Options& options, const std::string& run_id);

std::string host_name();

}  // namespace lockstep::launch
