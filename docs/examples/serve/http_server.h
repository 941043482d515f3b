// httplib's server with limits on connections.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "connection.h"

namespace example {

// Each connection has a thread, as httplib wants it: a client that is slow, or that reads its text over a minute, keeps
// that thread and nobody else's. There are as many as `workers`; a connection that finds none idle is refused at once
// with 503, so that nothing piles up. Threads that wait cost some memory and no time, and since a client's time is
// limited in each state (ConnectionLimits), threads come back whatever it does.
class HttpServer : public httplib::Server {
 public:
  HttpServer(int workers, const ConnectionLimits& limits) : workers_(workers), limits_(limits) {
    new_task_queue = [this] { return new Workers(*this); };
    set_tcp_nodelay(true);                                                // tokens go out as they come
    set_keep_alive_max_count(static_cast<std::size_t>(limits.requests));  // is told to clients
    set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(limits.idle).count());
    set_payload_max_length(limits.body_bytes);  // of bodies that say their length
  }

  // httplib's own queue of the system holds five connections, too few for many that come at once.
  void widen_backlog() { ::listen(svr_sock_, 1024); }
  // Ends what is still open: reads and writes fail.
  void close_connections() { closing_ = true; }
  int connections() const { return open_; }
  std::uint64_t refused() const { return refused_; }
  // A request of this thread's connection counts from when its head is read until its answer is sent.
  void count_request() {
    ++requests_;
    ++answering_;
    Connection::current()->answering = true;
  }
  std::uint64_t requests() const { return requests_; }
  int answering() const { return answering_; }

 private:
  class Workers : public httplib::TaskQueue {
   public:
    explicit Workers(HttpServer& server) : server_(server) {
      for (int i = 0; i < server.workers_; ++i) threads_.emplace_back([this] { work(); });
    }
    void enqueue(std::function<void()> connection) override {
      if (server_.open_ >= server_.workers_) {  // only this thread adds to it
        refusing() = true;
        connection();
        refusing() = false;
        return;
      }
      ++server_.open_;
      {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(connection));
      }
      changed_.notify_one();
    }
    void shutdown() override {
      {
        const std::lock_guard lock(mutex_);
        over_ = true;
      }
      changed_.notify_all();
      for (std::thread& thread : threads_) thread.join();
    }

   private:
    void work() {
      std::unique_lock lock(mutex_);
      while (true) {
        changed_.wait(lock, [&] { return over_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        const auto connection = std::move(waiting_.front());
        waiting_.pop_front();
        lock.unlock();
        connection();
        --server_.open_;
        lock.lock();
      }
    }
    HttpServer& server_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> waiting_;
    bool over_ = false;
    std::vector<std::thread> threads_;
  };

  static bool& refusing() {
    static thread_local bool of_thread = false;
    return of_thread;
  }

  bool process_and_close_socket(socket_t socket) override {
    if (refusing()) {
      constexpr std::string_view kFull =
          "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: "
          "application/json\r\n"
          "Content-Length: 104\r\n\r\n"
          R"({"error":{"message":"all connections are taken","type":"server_error","param":null,"code":"overloaded"}})";
      ++refused_;
      ::send(socket, kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      ::shutdown(socket, SHUT_WR);
      char unread[4096];  // a socket that is closed with bytes unread takes the answer back
      while (::recv(socket, unread, sizeof unread, MSG_DONTWAIT) > 0) {
      }
      ::close(socket);
      return false;
    }
    Connection connection(socket, limits_, closing_);
    Connection::current() = &connection;
    for (int i = 0; i < limits_.requests && connection.await_request(i == 0); ++i) {
      const bool last = i + 1 == limits_.requests || open_ > workers_ * 3 / 4;  // then others want the thread
      bool closed = false, good = false;
      try {
        good = process_request(connection, last, closed, [](httplib::Request& request) {
          request.headers.erase("Accept-Encoding");  // answers are as they are
        });
      } catch (...) {  // of httplib itself, or no memory: the connection ends, the server goes on
      }
      if (std::exchange(connection.answering, false)) --answering_;
      if (!good || closed || last || connection.must_close) break;
    }
    Connection::current() = nullptr;
    return true;
  }

  const int workers_;
  const ConnectionLimits limits_;
  std::atomic<bool> closing_ = false;
  std::atomic<int> open_ = 0, answering_ = 0;
  std::atomic<std::uint64_t> refused_ = 0, requests_ = 0;
};

}  // namespace example
