#include "lockstep/parallel/launch/reports.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "lockstep/parallel/comm/ranks/launcher_protocol.h"
#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/launch/ends.h"

namespace lockstep::launch {

Reports::Reports()
    : name_(cat("lockstep-run-", detail::to_hex(detail::random_bytes(16)))),
      socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const detail::Endpoint own = detail::abstract_endpoint(name_);
  const int on = 1;
  if (!socket_ || ::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
      ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own.address), own.bytes) != 0)
    throw Error(cat("cannot make a socket for the ranks: ", std::strerror(errno)));
}

bool Reports::next(Report& report) {
  while (true) {
    char bytes[4096];
    iovec part{.iov_base = bytes, .iov_len = sizeof bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t length = ::recvmsg(socket_.get(), &message, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return false;
    ucred sender{.pid = 0, .uid = static_cast<uid_t>(-1), .gid = 0};
    if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
        header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS)
      std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
    if (sender.uid != ::geteuid()) continue;
    std::istringstream words(std::string(bytes, static_cast<std::size_t>(length)));
    std::string what;
    if (!(words >> report.rank >> what)) continue;
    report.well = what == detail::kRecovered;
    report.blamed = RankEnd::kUnknownRank;
    if (!report.well && what != detail::kUnknownRank) std::istringstream(what) >> report.blamed;
    words.get();
    report.text.clear();
    std::getline(words, report.text);
    return true;
  }
}

}  // namespace lockstep::launch
