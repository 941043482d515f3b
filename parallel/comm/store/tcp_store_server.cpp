#include "lockstep/parallel/comm/store/tcp_store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <new>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_service.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep {

struct TcpStoreServer::Service {
  Service(const TcpStoreServerOptions& options, detail::Fd listener) : store(options, std::move(listener)) {}
  detail::StoreService store;
  std::promise<void> ended;
  const std::uint64_t generation = detail::fork_generation();
};

namespace {

detail::Fd listen_at(const TcpStoreServerOptions& options, const detail::Endpoint& endpoint) {
  const auto fail = [&](const char* what) {
    throw CommError(
        -1, "store",
        cat("cannot ", what, " ", detail::to_string({options.address, options.port}), ": ", std::strerror(errno)));
  };
  if (options.listener >= 0) {
    detail::Fd copy(::fcntl(options.listener, F_DUPFD_CLOEXEC, 0));
    if (!copy) fail("go on listening at");
    return copy;
  }
  detail::Fd listener(::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener) fail("make a socket for");
  const int on = 1;  // a port whose connections of before still linger is free
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.bytes) != 0)
    fail("bind to");
  if (::listen(listener.get(), SOMAXCONN) != 0) fail("listen at");
  return listener;
}

}  // namespace

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options) : host_(options.address) {
  LOCKSTEP_CHECK(options.port >= 0 && options.port <= 65535, "[TcpStoreServer] expected a port from 0 to 65535, got ",
                 options.port);
  for (const std::string& token : {options.token, options.other_token})
    LOCKSTEP_CHECK(token.empty() || token.size() >= kMinTokenBytes, "[TcpStoreServer] expected a token of at least ",
                   kMinTokenBytes, " bytes, got ", token.size());
  LOCKSTEP_CHECK(options.other_token.empty() || !options.token.empty(),
                 "[TcpStoreServer] expected a token along with another, got none");
  const detail::Endpoint endpoint = detail::resolve({options.address, options.port}).front();
  LOCKSTEP_CHECK(endpoint.loopback() || !options.token.empty(),
                 "[TcpStoreServer] expected a token (LOCKSTEP_TOKEN_FILE",
                 " or LOCKSTEP_TOKEN) for an address beyond the loopback, got none for ", options.address);
  detail::Fd listener = listen_at(options, endpoint);
  listener_ = listener.get();
  sockaddr_storage bound{};
  socklen_t bytes = sizeof bound;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &bytes);
  port_ = ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                           : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
  service_ = std::make_shared<Service>(options, std::move(listener));
  detail::start_service_thread("store", [service = service_] {
    service->store.run();
    service->ended.set_value();
  });
}

TcpStoreServer::~TcpStoreServer() {
  if (service_->generation != detail::fork_generation()) {  // the parent's goes on serving
    new (std::nothrow) std::shared_ptr<Service>(std::move(service_));
    return;
  }
  service_->store.stop();
  service_->ended.get_future().get();
}

std::string TcpStoreServer::address() const { return detail::to_string({host_, port_}); }

}  // namespace lockstep
