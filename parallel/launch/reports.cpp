#include "lockstep/parallel/launch/reports.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <sstream>

#include "lockstep/parallel/comm/internal/job.h"
#include "lockstep/parallel/comm/internal/sha256.h"
#include "lockstep/parallel/launch/ends.h"

namespace lockstep::launch {

Reports::Reports()
    : name_(cat("lockstep-run-", detail::to_hex(detail::random_bytes(16)))),
      socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name_.data(), name_.size());
  const int on = 1;
  if (!socket_ || ::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
      ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size())) != 0)
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
    report.well = what == detail::kWell;
    report.blamed = RankEnd::kSomebody;
    if (!report.well && what != detail::kSomebody) std::istringstream(what) >> report.blamed;
    words.get();
    report.text.clear();
    std::getline(words, report.text);
    return true;
  }
}

}  // namespace lockstep::launch
