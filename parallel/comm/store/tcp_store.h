// A store over TCP, which a TcpStoreServer serves (store/tcp_store_server.h) and the ranks connect to.
//
// Both sides prove that they know the job's token (HMAC-SHA256 of each other's random numbers), which also keeps jobs
// apart. Nothing is encrypted: what travels can be read, and altered, by whoever controls the network in between.
// Without a token only this machine's loopback can be used, and every process of the machine can take part.
#pragma once

#include <memory>
#include <string>

#include "lockstep/parallel/comm/store/store.h"

namespace lockstep {

// The token in the file that LOCKSTEP_TOKEN_FILE names (only its owner may be able to read it; a newline at the end
// does not count) or in LOCKSTEP_TOKEN; empty when neither is set. Throws InvalidArgument for what is no token.
LOCKSTEP_API std::string store_token();
LOCKSTEP_API std::string store_token_from_file(const std::string& path);

struct TcpStoreOptions {
  std::string address;                    // "host:port"
  std::string token;                      // the server's
  int host_rank = -1;                     // the rank that serves the store, for messages; -1: the launcher
  Milliseconds connect_timeout{300'000};  // the server may start later than its clients
  Milliseconds timeout{60'000};           // for the answer to every call but get(), which has its own deadline
};

// Connects; threads that call at the same time have connections of their own. Throws InvalidArgument for an address
// beyond the loopback without a token, CommError when there is no such store before `connect_timeout`, or one that
// has another token. Once the server is gone all calls throw CommError.
LOCKSTEP_API std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options);

}  // namespace lockstep
