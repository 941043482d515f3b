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
  std::string token;                       // what ranks show to it
  std::unique_ptr<TcpStoreServer> server;  // on node 0
  std::shared_ptr<Store> client;
};

// What the ranks of a round show: of each round its own, so that one of an earlier round is refused. That of the job
// where there is one round alone. `job` tells it from others that node 0 has begun with the same token.
std::string token_of_round(const Options& options, const std::string& token, const std::string& job);

// Serves it, or waits for it as long as the options say. It takes the launchers' token and the ranks'. With one node it
// is on the loopback interface. Throws CommError where it cannot be served or reached.
JobStore open_store(const Options& options, const std::string& token, const std::string& token_of_ranks);

// That of a job whose nodes are the same from its beginning to its end: takes the number of this one. InvalidArgument
// for what does not fit the other nodes.
JobStore open_fixed_store(const Options& options, const std::string& token, const std::string& job);

// The key under which node `node` says `name`.
std::string node_key(const char* name, int node);

// Node 0 says what the options must be on all nodes; the others' must be the same, else InvalidArgument. Blocks until
// node 0 has said it.
void agree_on_options(Store& store, const Options& options);

// Takes the number of the node for the lockstep-run with this name; InvalidArgument when another one has it.
void claim_node(Store& store, const Options& options, const std::string& run_id);

std::string host_name();

}  // namespace lockstep::launch
