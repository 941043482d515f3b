#include "lockstep/parallel/comm/store/store_service.h"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kSendBuffer = 64 << 10;
constexpr Milliseconds kPause{50};  // before connections are accepted again when descriptors have run out

}  // namespace

StoreService::StoreService(const TcpStoreServerOptions& options, Fd listener)
    : options_(options),
      listener_(std::move(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      table_({.keys = options.max_keys, .total_bytes = options.max_total_bytes}) {
  if (!epoll_ || !stop_) throw CommError(-1, "store", cat("cannot serve: ", std::strerror(errno)));
  watch(listener_.get(), kListener, EPOLLIN, EPOLL_CTL_ADD);
  watch(stop_.get(), kStop, EPOLLIN, EPOLL_CTL_ADD);
}

void StoreService::stop() {
  const std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void StoreService::run() {
  epoll_event events[256];
  for (bool running = true; running;) {
    const int ready = ::epoll_wait(epoll_.get(), events, 256, milliseconds_to_next());
    for (int i = 0; i < ready; ++i) {
      const Id id = events[i].data.u64;
      if (id == kStop) running = false;
      if (id == kListener) {
        accept_all();
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        handle(id, found->second, events[i].events);
      }
    }
    expire();
    if (!listening_) listen(true);
  }
  connections_.clear();
  listener_.close();
}

void StoreService::handle(Id id, Connection& connection, std::uint32_t events) {
  bool stays = false;
  try {
    if (connection.state == State::answering) {
      stays = (events & EPOLLERR) == 0 && flush(id, connection);
    } else {
      stays = receive(id, connection);  // where there is an error, that is what it receives
    }
  } catch (const std::exception&) {  // no memory: this connection goes, the others stay
  }
  if (!stays) drop(id);
}

// ---- connections

void StoreService::accept_all() {
  for (int n = 0; n < 64; ++n) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (strangers_.empty()) return listen(false);
        drop(*strangers_.begin());
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      continue;  // one that is gone again
    }
    if (static_cast<int>(strangers_.size()) >= options_.max_strangers) drop(*strangers_.begin());
    const Id id = next_++;
    try {
      if (!begin(id, std::move(socket))) drop(id);
    } catch (const std::exception&) {
      drop(id);
    }
  }
}

bool StoreService::begin(Id id, Fd socket) {
  configure_socket(socket.get());
  // What one does not read may not pile up in the system either.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
  Connection& connection = connections_[id];
  connection.socket = std::move(socket);
  strangers_.insert(id);
  set_due(id, connection, Deadline::after(options_.handshake_timeout).time());
  connection.nonce = random_bytes(wire::kNonceBytes);
  watch(connection.socket.get(), id, EPOLLIN, EPOLL_CTL_ADD);
  std::string hello(wire::kMagic);
  hello += {wire::kVersion, static_cast<char>(!options_.token.empty())};
  hello += connection.nonce;
  // An empty socket has room for it.
  const ssize_t sent = ::send(connection.socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(hello.size());
}

void StoreService::drop(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  due_.erase({connection.due, id});
  strangers_.erase(id);
  buffered_ -= connection.in.size();
  const auto [first, last] = waiting_.equal_range(connection.key);
  for (auto each = first; each != last; ++each) {
    if (each->second != id) continue;
    waiting_.erase(each);
    break;
  }
  connections_.erase(found);
}

void StoreService::set_due(Id id, Connection& connection, Clock::time_point due) {
  if (connection.due != Clock::time_point::max()) due_.erase({connection.due, id});
  connection.due = due;
  if (due != Clock::time_point::max()) due_.insert({due, id});
}

void StoreService::watch(int fd, Id id, std::uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), operation, fd, &event);
}

void StoreService::listen(bool on) {
  listening_ = on;
  watch(listener_.get(), kListener, on ? std::uint32_t{EPOLLIN} : 0, EPOLL_CTL_MOD);
}

int StoreService::milliseconds_to_next() const {
  auto next = due_.empty() ? Clock::time_point::max() : due_.begin()->first;
  if (!listening_) next = std::min(next, Clock::now() + kPause);
  if (next == Clock::time_point::max()) return -1;
  return static_cast<int>(std::clamp<std::int64_t>(std::chrono::ceil<Milliseconds>(next - Clock::now()).count(), 0,
                                                   std::numeric_limits<int>::max()));
}

void StoreService::expire() {
  while (!due_.empty() && due_.begin()->first <= Clock::now()) {
    const Id id = due_.begin()->second;
    Connection& connection = connections_.at(id);
    if (connection.state == State::waiting) {
      if (!reply(id, connection, wire::Status::timeout)) drop(id);
    } else {
      drop(id);
    }
  }
}

// ---- requests and answers

bool StoreService::receive(Id id, Connection& connection) {
  char bytes[kReadBytes];
  const ssize_t got = ::recv(connection.socket.get(), bytes, sizeof bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
  // The other side's system says that it has closed. Where it only has not answered for long, it may be there yet.
  if (got == 0 || (got < 0 && errno == ECONNRESET)) execute_will(connection);
  if (got <= 0 || connection.state == State::waiting) return false;  // nothing is due from one that waits
  const auto count = static_cast<std::size_t>(got);
  if (buffered_ + count > options_.max_buffered_bytes) return false;
  if (connection.state == State::open && connection.in.empty())
    set_due(id, connection, Deadline::after(options_.transfer_timeout).time());
  connection.in.append(bytes, count);
  buffered_ += count;
  if (connection.state == State::stranger)
    return connection.in.size() < wire::kGreetingBytes ||
           (connection.in.size() == wire::kGreetingBytes && greet(id, connection));
  if (connection.in.size() < 4) return true;
  const std::size_t length = wire::take<std::uint32_t>(connection.in.data());
  if (length > wire::kMaxRequest || connection.in.size() > 4 + length) return false;
  return connection.in.size() < 4 + length || process(id, connection);
}

bool StoreService::greet(Id id, Connection& connection) {
  const std::string_view greeting = connection.in;
  if (!greeting.starts_with(wire::kMagic) || greeting[4] != wire::kVersion) return false;
  const bool has_token = greeting[5] != 0, wants_token = !options_.token.empty();
  const std::string_view nonce = greeting.substr(6, wire::kNonceBytes);
  const std::string_view proof = greeting.substr(wire::kHelloBytes);
  const auto proves = [&](const std::string& token) {
    return !token.empty() && equal_in_constant_time(proof, wire::proof(token, "client", connection.nonce, nonce));
  };
  const std::string& token = proves(options_.other_token) ? options_.other_token : options_.token;
  const bool known = has_token == wants_token && (!wants_token || proves(token));
  const bool full = connections_.size() - strangers_.size() >= static_cast<std::size_t>(options_.max_connections);
  const wire::Verdict verdict = !known ? wire::Verdict::denied : full ? wire::Verdict::full : wire::Verdict::welcome;
  connection.head = static_cast<char>(verdict);
  connection.head += known && wants_token ? wire::proof(token, "server", connection.nonce, nonce)
                                          : std::string(wire::kProofBytes, '\0');
  connection.last_answer = verdict != wire::Verdict::welcome;
  if (verdict == wire::Verdict::welcome) strangers_.erase(id);
  buffered_ -= connection.in.size();
  connection.in.clear();
  return flush(id, connection);
}

void StoreService::execute_will(Connection& connection) {
  const std::string key = std::exchange(connection.will_key, {});
  if (key.empty()) return;
  table_.compare_set(key, "", connection.will_value);
  wake(key);
}

bool StoreService::process(Id id, Connection& connection) {
  const std::string in = std::exchange(connection.in, {});
  buffered_ -= in.size();
  const auto request = wire::decode(std::string_view(in).substr(4));
  if (!request) return false;
  const std::string key(request->key);
  try {
    switch (request->op) {
      case wire::Op::set:
        table_.set(key, std::string(request->first));
        if (!reply(id, connection, wire::Status::ok)) drop(id);
        wake(key);
        return connections_.contains(id);
      case wire::Op::add: {
        const std::int64_t sum = table_.add(key, request->number);
        if (!reply(id, connection, wire::Status::ok, sum)) drop(id);
        wake(key);
        return connections_.contains(id);
      }
      case wire::Op::compare_set: {
        const auto value = table_.compare_set(key, std::string(request->first), std::string(request->second));
        if (!reply(id, connection, wire::Status::ok, 0, value)) drop(id);
        if (table_.find(key)) wake(key);
        return connections_.contains(id);
      }
      case wire::Op::erase:
        return reply(id, connection, wire::Status::ok, table_.erase(key));
      case wire::Op::will:
        LOCKSTEP_CHECK(request->first.size() <= Store::kMaxKeyBytes, "[leave_will] expected a value of at most ",
                       Store::kMaxKeyBytes, " bytes for '", key, "', got ", request->first.size());
        connection.will_key = key;
        connection.will_value = request->first;
        return reply(id, connection, wire::Status::ok);
      case wire::Op::get:
      case wire::Op::try_get:
        break;
    }
  } catch (const InvalidArgument& error) {
    return reply(id, connection, wire::Status::invalid, 0, std::make_shared<const std::string>(error.what()));
  }
  if (const auto value = table_.find(key)) return reply(id, connection, wire::Status::ok, 0, value);
  if (request->op == wire::Op::try_get) return reply(id, connection, wire::Status::absent);
  connection.state = State::waiting;
  connection.key = key;
  waiting_.emplace(key, id);
  set_due(id, connection,
          request->number < 0 ? Clock::time_point::max() : Deadline::after(Milliseconds(request->number)).time());
  return true;
}

void StoreService::wake(const std::string& key) {
  const auto value = table_.find(key);
  for (auto waiter = waiting_.find(key); value && waiter != waiting_.end(); waiter = waiting_.find(key)) {
    const Id id = waiter->second;
    if (!reply(id, connections_.at(id), wire::Status::ok, 0, value)) drop(id);
  }
}

bool StoreService::reply(Id id, Connection& connection, wire::Status status, std::int64_t number,
                         StoreTable::Value value) {
  if (connection.state == State::waiting) {
    const auto [first, last] = waiting_.equal_range(connection.key);
    waiting_.erase(std::find_if(first, last, [&](const auto& each) { return each.second == id; }));
    connection.key.clear();
    connection.state = State::open;
  }
  wire::put(connection.head, static_cast<std::uint32_t>(wire::kReplyHead + (value ? value->size() : 0)));
  connection.head += {wire::kVersion, static_cast<char>(status)};
  wire::put(connection.head, number);
  connection.body = std::move(value);
  connection.body_sent = 0;
  return flush(id, connection);
}

bool StoreService::flush(Id id, Connection& connection) {
  while (true) {
    const std::size_t body = connection.body ? connection.body->size() - connection.body_sent : 0;
    if (connection.head.empty() && body == 0) break;
    iovec pieces[2] = {{connection.head.data(), connection.head.size()}, {nullptr, body}};
    if (body > 0) pieces[1].iov_base = const_cast<char*>(connection.body->data()) + connection.body_sent;
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    const ssize_t sent = ::sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
      if (connection.state != State::answering) {
        connection.state = State::answering;
        set_due(id, connection, Deadline::after(options_.transfer_timeout).time());
        watch(connection.socket.get(), id, EPOLLOUT, EPOLL_CTL_MOD);
      }
      return true;
    }
    const std::size_t of_head = std::min(static_cast<std::size_t>(sent), connection.head.size());
    connection.head.erase(0, of_head);
    connection.body_sent += static_cast<std::size_t>(sent) - of_head;
  }
  if (connection.state == State::answering) watch(connection.socket.get(), id, EPOLLIN, EPOLL_CTL_MOD);
  connection.body = nullptr;
  connection.state = State::open;
  set_due(id, connection, Clock::time_point::max());
  return !connection.last_answer;
}

}  // namespace lockstep::detail
