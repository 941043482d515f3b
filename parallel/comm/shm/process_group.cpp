#include "lockstep/parallel/comm/shm/process_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"
#include "lockstep/version.h"

namespace lockstep::detail {

constinit thread_local const std::string* build_override = nullptr;
constinit thread_local Milliseconds grace_of_failed_group{5'000};

namespace {

constexpr char kConnect[] = "connect";
constexpr std::uint64_t kMagic = 0x4c6f636b73746570u;  // "Lockstep"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

ControlBlockLayout layout_of(int size) {
  return {
      .ranks = size, .threads = 0, .slot_bytes = 256 << 10, .pair_slot_bytes = 64 << 10, .host_slot_bytes = 64 << 10};
}

// Whose memory looks alike. Two builds of one version may differ in what they were compiled with.
std::string build() {
  if (build_override) return *build_override;
  return cat(LOCKSTEP_VERSION_STRING, " (", sizeof(ControlBlockLayout), '.', sizeof(WorkDescriptor), '.',
             sizeof(RankState), '.', sizeof(Collective), '.', static_cast<int>(Collective::Kind::exchange), '.',
             kDTypeCount, '.', ControlBlock::kMostRanks, ')');
}

// Begins alike in every version, so that a rank of another one can be told so.
struct Hello {
  std::uint64_t magic = kMagic;
  std::int32_t rank = 0, process = 0;
  ControlBlockLayout layout;
  char build[64] = {};
};
struct Welcome {
  std::int32_t refused_rank = -1;  // who is at fault; -1: here is the memory
  char text[500] = {};
  std::int32_t processes[ControlBlock::kMostRanks] = {};  // 0: not known here
};

// What a rank has when all have come.
struct Joined {
  std::shared_ptr<ControlBlock> control = {};
  std::vector<ProcessMonitor::Watched> watched = {};
  bool share_devices = false;
  std::string id = {};  // the name of the socket, which is random
};

// Ranks that are threads of one process may work on one device; the same answer on every rank.
bool threads_among(const Welcome& welcome, int ranks) {
  const auto begin = std::begin(welcome.processes), end = begin + ranks;
  return std::any_of(begin, end, [&](std::int32_t id) { return id != 0 && std::count(begin, end, id) > 1; });
}

[[noreturn]] void fail_system(int rank, const char* what) {
  throw CommError(rank, kConnect, cat("expected ", what, ", got ", std::strerror(errno)));
}

// For poll; not for long, as whoever waits looks around now and then.
int milliseconds_left(const Deadline& deadline) {
  return static_cast<int>(std::min(deadline.left(), kPollInterval).count());
}

// Processes of other users are no ranks of this job.
std::optional<ucred> same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != geteuid()) return std::nullopt;
  return peer;
}

Fd make_memory(const ControlBlockLayout& layout) {
  Fd memory(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ftruncate(memory.get(), static_cast<off_t>(ControlBlock::bytes_of(layout))) != 0)
    fail_system(0, "a file in memory");
  // Nobody can take it away from under the others.
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) fail_system(0, "to seal a file in memory");
  return memory;
}

void send_welcome(int socket, const Welcome& welcome, int memory) {
  iovec part{.iov_base = const_cast<Welcome*>(&welcome), .iov_len = sizeof welcome};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (memory >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory, sizeof memory);
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);  // a rank that is gone is noticed by its socket
}

// The memory, and who is there; throws what rank 0 says instead.
Fd receive_welcome(int socket, Welcome& welcome, const Deadline& deadline) {
  pollfd polled{.fd = socket, .events = POLLIN, .revents = 0};
  while (poll(&polled, 1, milliseconds_left(deadline)) <= 0)
    if (deadline.passed())
      throw CommError(0, kConnect, "expected rank 0 to hand over the memory, got nothing before the deadline");
  iovec part{.iov_base = &welcome, .iov_len = sizeof welcome};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  Fd memory;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
      header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    memory = Fd(number);
  }
  if (length != static_cast<ssize_t>(sizeof welcome))
    throw CommError(0, kConnect, "rank 0 died, or gave up, while the ranks connected");
  welcome.text[sizeof welcome.text - 1] = '\0';
  if (welcome.refused_rank >= 0) throw CommError(welcome.refused_rank, kConnect, welcome.text);
  return memory;
}

void monitor_process(std::vector<ProcessMonitor::Watched>& watched, ControlBlock& control, int rank, int process) {
  if (process == 0) return;
  Fd descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (descriptor)
    watched.emplace_back(std::move(descriptor), rank);
  else if (errno == ESRCH)
    control.set_presence(rank, ControlBlock::Presence::died);
}

// ---- rank 0

class GroupServer {
 public:
  GroupServer(int size, Milliseconds timeout, const EndedRanks& ended)
      : size_(size),
        timeout_(timeout),
        deadline_(Deadline::after(timeout)),
        ended_(ended),
        layout_(layout_of(size)),
        sockets_(static_cast<std::size_t>(size)) {}

  const std::string& listen() {
    listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const Endpoint own = abstract_endpoint(name_);
    if (!listener_ || bind(listener_.get(), reinterpret_cast<const sockaddr*>(&own.address), own.bytes) != 0 ||
        ::listen(listener_.get(), size_) != 0)
      fail_system(0, "a socket");
    return name_;
  }

  // Until every rank has connected; tells all who have when that does not come about.
  void gather() {
    welcome_.processes[0] = getpid();
    while (present_ < size_ - 1) {
      std::vector<pollfd> polled{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const Fd& socket : strangers_) polled.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
      const std::size_t ranks_begin = polled.size();
      for (const Fd& socket : sockets_) polled.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
      const int ready = poll(polled.data(), polled.size(), milliseconds_left(deadline_));
      if (ready < 0) continue;  // EINTR
      if (ready == 0) {
        if (deadline_.passed()) refuse_missing();
        if (ended_) refuse_ended();
        continue;
      }
      for (std::size_t r = 0; r < sockets_.size(); ++r)
        if (polled[ranks_begin + r].revents)
          refuse(static_cast<int>(r), cat("rank ", r, " died while the ranks connected"));
      for (std::size_t i = strangers_.size(); i-- > 0;)
        if (polled[1 + i].revents) greet(take_stranger(i));
      if (polled[0].revents) accept_one();
    }
  }

  Joined hand_over() {
    Fd memory = make_memory(layout_);
    for (int r = 1; r < size_; ++r) send_welcome(socket_of(r).get(), welcome_, memory.get());
    Joined joined{.control = std::make_shared<ControlBlock>(layout_, memory.get()),
                  .share_devices = threads_among(welcome_, size_),
                  .id = name_};
    for (int r = 1; r < size_; ++r) {
      monitor_process(joined.watched, *joined.control, r, welcome_.processes[r]);
      joined.watched.emplace_back(std::move(socket_of(r)), r);
    }
    return joined;
  }

 private:
  Fd& socket_of(int rank) { return sockets_[static_cast<std::size_t>(rank)]; }

  void greet(Fd socket) {
    Hello hello;
    const ssize_t got = recv(socket.get(), &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
    if (got < static_cast<ssize_t>(sizeof hello.magic + sizeof hello.rank) || hello.magic != kMagic) return;  // no rank
    hello.build[sizeof hello.build - 1] = '\0';
    if (got != static_cast<ssize_t>(sizeof hello) || hello.build != build()) {
      const std::string its = got == static_cast<ssize_t>(sizeof hello) ? hello.build : "another one";
      refused_.push_back(std::move(socket));
      refuse(std::max(hello.rank, 0),
             cat("expected all ranks to run one build of Lockstep, ", build(), ", got rank ", hello.rank, " of ", its));
    }
    if (hello.layout != layout_ || hello.rank <= 0 || hello.rank >= size_ || socket_of(hello.rank)) {
      const int rank = hello.rank;
      refused_.push_back(std::move(socket));
      refuse(std::max(rank, 0),
             hello.layout != layout_
                 ? cat("expected all ranks to be of ", size_, ", got rank ", rank, " of ", hello.layout.ranks)
                 : cat("expected ranks from 1 to ", size_ - 1, ", each once, got rank ", rank));
    }
    // What it says holds here only if both are in one namespace of processes.
    const std::optional<ucred> peer = same_user(socket.get());
    if (peer && peer->pid == hello.process) welcome_.processes[hello.rank] = hello.process;
    socket_of(hello.rank) = std::move(socket);
    ++present_;
  }

  [[noreturn]] void refuse(int rank, const std::string& text) {
    welcome_.refused_rank = rank;
    std::memcpy(welcome_.text, text.data(), std::min(text.size(), sizeof welcome_.text - 1));
    for (const Fd& socket : sockets_)
      if (socket) send_welcome(socket.get(), welcome_, -1);
    for (const Fd& socket : refused_) send_welcome(socket.get(), welcome_, -1);
    tell_those_on_their_way();
    throw CommError(rank, kConnect, text);
  }
  // They would wait for this group until the deadline, and then blame this rank. After the deadline they need not.
  void tell_those_on_their_way() {
    const Deadline grace = Deadline::after(std::min(grace_of_failed_group, deadline_.left()));
    const auto gone = ended_ ? static_cast<std::ptrdiff_t>(ended_().size()) : 0;
    while (std::ssize(refused_) < size_ - 1 - present_ - gone && !grace.passed()) {
      std::vector<pollfd> polled{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const Fd& socket : strangers_) polled.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
      if (poll(polled.data(), polled.size(), milliseconds_left(grace)) <= 0) continue;
      for (std::size_t i = strangers_.size(); i-- > 0;) {
        if (polled[1 + i].revents == 0) continue;
        refused_.push_back(take_stranger(i));
        Hello hello;  // an answer to what nobody has read might be lost
        (void)recv(refused_.back().get(), &hello, sizeof hello, MSG_DONTWAIT);
        send_welcome(refused_.back().get(), welcome_, -1);
      }
      if (polled[0].revents) accept_one();
    }
  }
  Fd take_stranger(std::size_t i) {
    Fd socket = std::move(strangers_[i]);
    strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(i));
    return socket;
  }
  void accept_one() {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket && same_user(socket.get())) strangers_.push_back(std::move(socket));
  }
  void refuse_ended() {
    for (const EndedRank& each : ended_())
      if (each.rank > 0 && each.rank < size_ && !socket_of(each.rank))
        refuse(each.rank, cat("rank ", each.rank, ' ', each.how, " before it joined"));
  }
  [[noreturn]] void refuse_missing() {
    std::string missing;
    int first = -1;
    for (int r = 1; r < size_; ++r) {
      if (socket_of(r)) continue;
      if (first < 0) first = r;
      missing += cat(missing.empty() ? "rank " : ", rank ", r);
    }
    refuse(first, cat("expected every rank to connect within ", timeout_.count(), " ms, got nothing from ", missing));
  }

  const int size_;
  const Milliseconds timeout_;
  const Deadline deadline_;
  const EndedRanks& ended_;
  const ControlBlockLayout layout_;
  const std::string name_ = cat("lockstep-", to_hex(random_bytes(16)));
  Fd listener_;
  std::vector<Fd> sockets_;              // by rank
  std::vector<Fd> strangers_, refused_;  // who has said nothing yet; who is told why there is no group
  int present_ = 0;
  Welcome welcome_;
};

Joined serve(Store& store, const std::string& key, int size, Milliseconds timeout, const EndedRanks& ended) {
  GroupServer server(size, timeout, ended);
  if (size > 1) {
    store.set(key, server.listen());
    try {
      server.gather();
    } catch (...) {
      store.erase(key);
      throw;
    }
    store.erase(key);
  }
  return server.hand_over();
}

// ---- the others

// Also the name of the socket that it has connected to.
std::pair<Fd, std::string> connect_to_server(Store& store, const std::string& key, const Deadline& deadline,
                                             const EndedRanks& ended) {
  for (;;) {
    std::string name;
    try {
      name = get_unless_ended(
          store, key, deadline, ended, [](int other) { return other == 0; }, kConnect);
    } catch (const TimeoutError& error) {
      throw CommError(0, kConnect, cat("expected rank 0 to be there before the deadline, got: ", error.what()));
    }
    Fd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const Endpoint server = abstract_endpoint(name);
    if (connection &&
        connect(connection.get(), reinterpret_cast<const sockaddr*>(&server.address), server.bytes) == 0) {
      if (!same_user(connection.get())) throw CommError(0, kConnect, "expected rank 0 to belong to the same user");
      return {std::move(connection), name};
    }
    // The name may be that of a group whose rank 0 is gone; or too many connect at once.
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) fail_system(0, "a connection to rank 0");
    if (deadline.passed()) throw CommError(0, kConnect, "expected rank 0 to be there before the deadline, got nothing");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Joined join(Store& store, const std::string& key, int rank, int size, Milliseconds timeout, const EndedRanks& ended) {
  // Rank 0 says at the deadline who is missing: it is given the time to do so.
  const Deadline deadline = Deadline::after(timeout + timeout / 4 + Milliseconds(100));
  auto [socket, name] = connect_to_server(store, key, deadline, ended);
  Hello hello{.rank = rank, .process = getpid(), .layout = layout_of(size)};
  build().copy(hello.build, sizeof hello.build - 1);
  if (send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL) < 0) fail_system(0, "to speak to rank 0");
  Welcome welcome;
  const Fd memory = receive_welcome(socket.get(), welcome, deadline);
  struct stat status {};
  if (!memory || fstat(memory.get(), &status) != 0 ||
      status.st_size != static_cast<off_t>(ControlBlock::bytes_of(hello.layout)) ||
      (fcntl(memory.get(), F_GET_SEALS) & kSeals) != kSeals)
    throw CommError(0, kConnect, "expected rank 0 to hand over sealed memory of the group's size, got something else");
  Joined joined{.control = std::make_shared<ControlBlock>(hello.layout, memory.get()),
                .share_devices = threads_among(welcome, size),
                .id = name};
  for (int r = 0; r < size; ++r)
    if (r != rank && (r != 0 || same_user(socket.get())->pid == welcome.processes[0]))
      monitor_process(joined.watched, *joined.control, r, welcome.processes[r]);
  joined.watched.emplace_back(std::move(socket), 0);
  return joined;
}

}  // namespace

std::shared_ptr<ShmGroup> ProcessGroup::make(std::shared_ptr<Store> store, std::string name, int rank, int size,
                                             Milliseconds timeout, bool share_devices, const EndedRanks& ended) {
  const std::string key = name + "/socket";
  Joined joined = rank == 0 ? serve(*store, key, size, timeout, ended) : join(*store, key, rank, size, timeout, ended);
  share_devices = share_devices || joined.share_devices;
  return std::make_shared<ProcessGroup>(std::move(joined.control), std::move(joined.watched), std::move(store),
                                        std::move(name), std::move(joined.id), share_devices);
}

}  // namespace lockstep::detail
