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
  std::string token;                       // of the round
  std::unique_ptr<TcpStoreServer> server;  // on node 0
  std::shared_ptr<Store> client;
};

// What the ranks of a round show: of each round its own, so that one of an earlier round is refused. That of the job
// where there is one round alone.
std::string token_of_round(const Options& options, const std::string& token);

// Serves it, or waits for it as long as the options say. A node that has been away does not know the round, and sets
// it in the options to the one whose token the store takes. With one node it is on the loopback interface. Throws
// CommError where it cannot be served or reached.
JobStore open_store(Options& options, const std::string& token);

// The key under which node `node` says `name`.
std::string node_key(const char* name, int node);

// Takes the number of the node for the lockstep-run with this name; InvalidArgument when another one has it.
void claim_node(Store& store, const Options& options, const std::string& run_id);

std::string host_name();

}  // namespace lockstep::launch
