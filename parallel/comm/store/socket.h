// Stream sockets with deadlines. Private to the library and its launcher.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/comm/fd.h"
#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

struct HostPort {
  std::string host;
  int port = 0;
};
// "host:port" or "[IPv6 address]:port". Throws InvalidArgument that begins with [what].
LOCKSTEP_API HostPort parse_host_port(const char* what, std::string_view text);
LOCKSTEP_API std::string to_string(const HostPort& address);

struct LOCKSTEP_API Endpoint {
  sockaddr_storage address{};
  socklen_t bytes = 0;
  bool loopback() const;
};
// Of the system's abstract namespace, where nothing is to clean up, whoever dies. Throws Error for a name that is too
// long.
LOCKSTEP_API Endpoint abstract_endpoint(std::string_view name);
// Looks the host up; a name may take as long as the system's resolver does. Throws CommError for one that is unknown.
LOCKSTEP_API std::vector<Endpoint> resolve(const HostPort& address);

// Non-blocking, closed on exec, without Nagle's delay, and with probes that notice a peer whose machine is gone.
void configure_socket(int fd);
// The error number, 0 when connected.
LOCKSTEP_API int connect_to(const Endpoint& endpoint, Deadline deadline, Fd& connected);

// Whether one of `events` (of poll), an error or a hang-up came before the deadline.
bool wait_until_ready(int fd, short events, Deadline deadline);

enum class SocketResult { done, timeout, closed };
SocketResult send_all(int fd, std::string_view bytes, Deadline deadline);
SocketResult receive_all(int fd, char* bytes, std::size_t count, Deadline deadline);

}  // namespace lockstep::detail
