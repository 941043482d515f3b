// A store over TCP: one process serves it, the others connect.
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

struct TcpStoreServerOptions {
  std::string address = "127.0.0.1";  // of an interface of this machine
  int port = 0;                       // 0: any that is free
  std::string token;                  // at least kMinTokenBytes; empty: none
  std::size_t max_keys = 100'000;
  std::size_t max_total_bytes = std::size_t{256} << 20;     // of keys and values
  std::size_t max_buffered_bytes = std::size_t{256} << 20;  // of requests that have arrived in part
  int max_connections = 4096;
  int max_strangers = 512;  // connections that have not proven themselves; the oldest goes when there are more
  Milliseconds handshake_timeout{10'000};
  Milliseconds transfer_timeout{30'000};  // for a request or an answer, from its first byte to its last
};

// Serves until it is destroyed, in a thread of its own. Whatever else connects costs bounded memory and does not
// disturb those that belong to the job.
class LOCKSTEP_API TcpStoreServer {
 public:
  static constexpr std::size_t kMinTokenBytes = 16;

  // Throws InvalidArgument for an address beyond the loopback without a token, CommError when it cannot listen there.
  explicit TcpStoreServer(const TcpStoreServerOptions& options = {});
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;
  ~TcpStoreServer();

  int port() const { return port_; }
  std::string address() const;  // "host:port", for clients

 private:
  struct Service;
  std::string host_;
  int port_ = 0;
  std::shared_ptr<Service> service_;  // shared with its thread
};

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
