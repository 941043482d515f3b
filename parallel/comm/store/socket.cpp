#include "lockstep/parallel/comm/store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

// Milliseconds for poll, rounded up; -1 when the deadline never comes.
int poll_milliseconds(Deadline deadline) {
  if (deadline.never()) return -1;
  return static_cast<int>(std::min<std::int64_t>(deadline.left().count(), 1'000'000'000));
}

}  // namespace

HostPort parse_host_port(const char* what, std::string_view text) {
  const auto colon = text.rfind(':');
  HostPort address;
  const char* const end = text.data() + text.size();
  bool fits = colon != text.npos && colon > 0;
  if (fits) {
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    fits = error == std::errc() && stop == end && address.port > 0 && address.port <= 65535;
    std::string_view host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    } else {
      fits = fits && host.find(':') == host.npos;
    }
    address.host = host;
  }
  LOCKSTEP_CHECK(fits, "[", what, "] expected host:port with a port from 1 to 65535, got '", text, "'");
  return address;
}

std::string to_string(const HostPort& address) {
  return address.host.find(':') == std::string::npos ? cat(address.host, ':', address.port)
                                                     : cat('[', address.host, "]:", address.port);
}

bool Endpoint::loopback() const {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Endpoint abstract_endpoint(std::string_view name) {
  Endpoint endpoint;
  auto& address = reinterpret_cast<sockaddr_un&>(endpoint.address);
  if (name.size() >= sizeof address.sun_path)
    fail<Error>("[socket] expected a name of less than ", sizeof address.sun_path, " bytes, got '", name, "'");
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  endpoint.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return endpoint;
}

std::vector<Endpoint> resolve(const HostPort& address) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0)
    throw CommError(-1, "store", cat("cannot look up the host '", address.host, "': ", ::gai_strerror(error)));
  std::vector<Endpoint> endpoints;
  for (const addrinfo* each = list; each; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    Endpoint endpoint;
    std::memcpy(&endpoint.address, each->ai_addr, each->ai_addrlen);
    endpoint.bytes = each->ai_addrlen;
    endpoints.push_back(endpoint);
  }
  ::freeaddrinfo(list);
  if (endpoints.empty()) throw CommError(-1, "store", cat("the host '", address.host, "' has no internet address"));
  return endpoints;
}

void configure_socket(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const auto set = [&](int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 40'000);
}

bool wait_until_ready(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd poll{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&poll, 1, poll_milliseconds(deadline));
    if (ready > 0) return true;
    if (ready == 0 && deadline.passed()) return false;
    if (ready < 0 && errno != EINTR) throw Error(cat("[poll] ", std::strerror(errno)));
  }
}

int connect_to(const Endpoint& endpoint, Deadline deadline, Fd& connected) {
  Fd fd(::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno;
  configure_socket(fd.get());
  const auto* address = reinterpret_cast<const sockaddr*>(&endpoint.address);
  if (::connect(fd.get(), address, endpoint.bytes) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_until_ready(fd.get(), POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return error;
  }
  // Where nobody listens on this machine, the port drawn for this end may be the very one called: connected to itself.
  sockaddr_storage own{}, peer{};
  socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &own_bytes);
  ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&peer), &peer_bytes);
  if (own_bytes == peer_bytes && std::memcmp(&own, &peer, own_bytes) == 0) return ECONNREFUSED;
  connected = std::move(fd);
  return 0;
}

SocketResult send_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_until_ready(fd, POLLOUT, deadline)) return SocketResult::timeout;
    } else if (errno != EINTR) {
      return SocketResult::closed;
    }
  }
  return SocketResult::done;
}

SocketResult receive_all(int fd, char* bytes, std::size_t count, Deadline deadline) {
  while (count > 0) {
    const ssize_t got = ::recv(fd, bytes, count, 0);
    if (got > 0) {
      bytes += got;
      count -= static_cast<std::size_t>(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_until_ready(fd, POLLIN, deadline)) return SocketResult::timeout;
    } else if (got == 0 || errno != EINTR) {
      return SocketResult::closed;
    }
  }
  return SocketResult::done;
}

}  // namespace lockstep::detail
