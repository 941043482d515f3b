// A client's socket with limits on how long it may take and how much it may send, which httplib's own has not: there
// each single read has a time limit, so that a client that sends a byte now and then keeps a thread for ever.
#pragma once

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>

namespace example {

struct ConnectionLimits {
  std::size_t head_bytes = 16 << 10, body_bytes = 1 << 20;
  std::chrono::milliseconds head{10'000}, body{30'000};  // from the first byte awaited to the last one
  std::chrono::milliseconds write{10'000};               // of one piece of an answer
  std::chrono::milliseconds idle{5'000};                 // between two requests
  int requests = 1000;                                   // of a connection
};

class Connection : public httplib::Stream {
 public:
  Connection(int socket, const ConnectionLimits& limits, const std::atomic<bool>& closing)
      : socket_(socket), limits_(limits), closing_(closing) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override {
    // Closing with bytes unread would throw away what the client has not received: let it read, for a moment.
    if (!broken_ && ::shutdown(socket_, SHUT_WR) == 0 && must_close) {
      const auto until = Clock::now() + std::chrono::seconds(1);
      while (!closing_ && wait(POLLIN, until) && ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT) > 0) {
      }
    }
    ::close(socket_);
  }

  // Of this thread; null outside of a request.
  static Connection*& current() {
    static thread_local Connection* of_thread = nullptr;
    return of_thread;
  }
  bool must_close = false;  // no other request: what is left of this one is not read
  bool answering = false;   // is counted as such by the server

  // Waits for a request's head. False when none came in time.
  bool await_request(bool first) {
    deadline_ = Clock::now() + (first ? limits_.head : limits_.idle);
    if (begin_ == end_ && !fill()) return false;
    deadline_ = Clock::now() + limits_.head;
    if (!receive_head()) return false;
    taken_ = 0;
    deadline_ = Clock::now() + limits_.body;
    return true;
  }
  // The client has closed its side, so nobody waits for an answer; or the server has no more time.
  bool gone() const {
    if (closing_) return true;
    pollfd poll{socket_, POLLRDHUP, 0};
    return broken_ || (::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
  }

  bool is_readable() const override { return begin_ < end_ || !gone(); }
  bool is_writable() const override { return !gone(); }
  ssize_t read(char* to, std::size_t size) override {
    if (given_ < head_.size()) {
      const std::size_t count = head_.copy(to, size, given_);
      given_ += count;
      return static_cast<ssize_t>(count);
    }
    // Of a body in pieces its lengths count too: twice is enough for any sensible division.
    if (taken_ >= 2 * limits_.body_bytes || (begin_ == end_ && !fill())) return -1;
    const std::size_t count = std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, count, to);
    begin_ += count, taken_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, std::size_t size) override {
    const auto until = Clock::now() + limits_.write;
    for (std::size_t done = 0; done < size && !broken_;) {
      const ssize_t sent = ::send(socket_, from + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0)
        done += static_cast<std::size_t>(sent);
      else if (errno != EINTR && ((errno != EAGAIN && errno != EWOULDBLOCK) || !wait(POLLOUT, until)))
        broken_ = true;
    }
    return broken_ ? -1 : static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  // False at the time limit, and when the server closes.
  bool wait(short events, Clock::time_point until) const {
    while (!closing_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      if (left <= 0) return false;
      pollfd poll{socket_, events, 0};
      const int ready = ::poll(&poll, 1, static_cast<int>(std::min<long long>(left, 100)));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
    return false;
  }
  // Lines about ranges are left out: nothing here has parts, and httplib takes them apart with a recursion that needs
  // megabytes of stack.
  bool receive_head() {
    constexpr std::string_view kEnd = "\r\n\r\n", kRange = "\r\nrange:";
    head_.clear();
    given_ = 0;
    while (!head_.ends_with(kEnd)) {
      if (begin_ == end_ && !fill()) return false;
      head_ += buffer_[begin_++];
      if (head_.size() <= limits_.head_bytes) continue;
      must_close = true;
      httplib::Stream::write("HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n\r\n");
      return false;
    }
    const auto range = [&] {
      return std::search(head_.begin(), head_.end(), kRange.begin(), kRange.end(), [](char given, char wanted) {
        return std::tolower(static_cast<unsigned char>(given)) == wanted;
      });
    };
    for (auto at = range(); at != head_.end(); at = range())
      head_.erase(at, std::search(at + 1, head_.end(), kEnd.begin(), kEnd.begin() + 2));
    return true;
  }
  bool fill() {
    while (wait(POLLIN, deadline_)) {
      const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) return false;
      begin_ = 0, end_ = static_cast<std::size_t>(got);
      return true;
    }
    return false;
  }

  const int socket_;
  const ConnectionLimits& limits_;
  const std::atomic<bool>& closing_;
  std::array<char, 16384> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what was received and not read
  std::string head_;
  std::size_t given_ = 0, taken_ = 0;  // of the head, of the body
  Clock::time_point deadline_{};
  bool broken_ = false;
};

}  // namespace example
