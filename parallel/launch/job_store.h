// The store of a job: node 0's launcher serves it, all launchers and all ranks use it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/fd.h"
#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

struct JobStore {
  std::string address;                     // "host:port"
  std::string token;                       // what ranks show to it
  std::unique_ptr<TcpStoreServer> server;  // on node 0
  std::shared_ptr<Store> client;
  detail::Fd will;           // but on node 0
  std::vector<int> tickets;  // of the nodes, by place; empty: their places. See leave_store

  int ticket(int place) const { return tickets.empty() ? place : tickets[static_cast<std::size_t>(place)]; }
};

// What the ranks of a round show: of each round its own, so that one of an earlier round is refused. That of the job
// where there is one round alone. `job` tells it from others that node 0 has begun with the same token.
std::string token_of_round(const Options& options, const std::string& token, const std::string& job);

// Serves it, or waits for it as long as the options say. It takes the launchers' token and the ranks'. With one node it
// is on the loopback interface. `listener`: TcpStoreServerOptions. Throws CommError where it cannot be served or
// reached.
JobStore open_store(const Options& options, const std::string& token, const std::string& token_of_ranks,
                    int listener = -1);

// That of a job whose nodes are the same from its beginning to its end: takes the number of this one. InvalidArgument
// for what does not fit the other nodes.
JobStore open_fixed_store(const Options& options, const std::string& token, const std::string& job);

// The key under which node `node` says `name`.
std::string node_key(const char* name, int node);

// How a launcher has left a store, for those that would wait for it: it comes to the store of the next round, or not.
enum class Leaving { comes_again, for_good };
// The launcher with this ticket leaves.
void leave_store(Store& store, int ticket, Leaving how);
// How it has; nothing while it is there.
std::optional<Leaving> has_left(Store& store, int ticket);
// Waits for it; TimeoutError at the deadline.
Leaving wait_until_left(Store& store, int ticket, Deadline deadline);
// From now on the store knows when this launcher has ended, in whatever way: it has left for good, unless it left
// before.
void leave_will(JobStore& store, const Options& options, int ticket);

// Node 0 says what the options must be on all nodes; the others' must be the same, else InvalidArgument. Blocks until
// node 0 has said it.
void agree_on_options(Store& store, const Options& options);

// Takes the number of the node for the lockstep-run with this name; InvalidArgument when another one has it.
void claim_node(Store& store, const Options& options, const std::string& run_id);

std::string host_name();

}  // namespace lockstep::launch
