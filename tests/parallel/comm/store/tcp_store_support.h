// What tests of the TCP store share: a token, and a connection that may break the rules.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_wire.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "support/catch.h"

namespace lockstep::test {

inline const std::string kToken = "a token for tests, 0123456789";

// A connection without manners.
class Stranger {
 public:
  explicit Stranger(const TcpStoreServer& server) : Stranger(server.address()) {}
  explicit Stranger(const std::string& address) {
    const auto endpoints = detail::resolve(detail::parse_host_port("test", address));
    if (detail::connect_to(endpoints.front(), soon(), fd_) != 0) throw Error("cannot connect to " + address);
  }
  detail::SocketResult send(std::string_view bytes) { return detail::send_all(fd_.get(), bytes, soon()); }
  std::string receive(std::size_t bytes) {
    std::string out(bytes, '\0');
    if (detail::receive_all(fd_.get(), out.data(), bytes, soon()) != detail::SocketResult::done) return "";
    return out;
  }
  // Whether the other side closes the connection; what it still sends is thrown away.
  bool is_closed() {
    char byte;
    detail::SocketResult got;
    while ((got = detail::receive_all(fd_.get(), &byte, 1, soon())) == detail::SocketResult::done) {
    }
    return got == detail::SocketResult::closed;
  }
  // Greets a server without token as a client does.
  void greet() {
    receive(detail::wire::kHelloBytes);
    std::string greeting(detail::wire::kMagic);
    greeting += {detail::wire::kVersion, '\0'};
    send(greeting + std::string(detail::wire::kNonceBytes + detail::wire::kProofBytes, '\0'));
    receive(detail::wire::kVerdictBytes);
  }
  int fd() const { return fd_.get(); }

 private:
  detail::Fd fd_;
};

inline void check_serves(Store& store) {
  store.set("alive", "yes");
  CHECK(store.get("alive", soon()) == "yes");
}

}  // namespace lockstep::test
