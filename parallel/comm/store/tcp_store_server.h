// The process that serves a TCP store; see store/tcp_store.h for who may connect.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

struct TcpStoreServerOptions {
  std::string address = "127.0.0.1";  // of an interface of this machine
  int port = 0;                       // 0: any that is free
  int listener = -1;                  // a socket that listens there, of which the server takes a copy; -1: it makes one
  std::string token;                  // at least kMinTokenBytes; empty: none
  std::string other_token;            // that lets in too, where `token` is wanted; empty: none
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
  // The socket that listens, while this is there. Who connects to a copy of it after that waits for the next server.
  int listener() const { return listener_; }

 private:
  struct Service;
  std::string host_;
  int port_ = 0, listener_ = -1;
  std::shared_ptr<Service> service_;  // shared with its thread
};

}  // namespace lockstep
