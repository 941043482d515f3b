// The thread that serves a TCP store.
#pragma once

#include <sys/epoll.h>

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_table.h"
#include "lockstep/parallel/comm/store/store_wire.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"

namespace lockstep::detail {

// One thread, so nothing here is locked. Every connection is in one of four states: it has yet to prove itself
// (a stranger), it may send a request, it waits for a key, or an answer is on its way to it; then nothing is read.
class StoreService {
 public:
  StoreService(const TcpStoreServerOptions& options, Fd listener);
  void run();   // until stop(); then every connection is closed
  void stop();  // from any thread

 private:
  using Id = std::uint64_t;  // of connections, never used twice; the oldest has the least
  enum class State { stranger, open, waiting, answering };
  struct Connection {
    Fd socket;
    State state = State::stranger;
    std::string nonce;
    std::string in;          // of a request, as far as it has come
    std::string head;        // of the answer, as far as it has not gone
    StoreTable::Value body;  // what follows the head
    std::size_t body_sent = 0;
    std::string key;  // waited for
    std::string will_key, will_value;
    bool last_answer = false;
    Clock::time_point due = Clock::time_point::max();
  };

  void accept_all();
  void handle(Id id, Connection& connection, std::uint32_t events);
  bool begin(Id id, Fd socket);  // these return whether the connection stays
  bool receive(Id id, Connection& connection);
  bool greet(Id id, Connection& connection);
  void execute_will(Connection& connection);
  bool process(Id id, Connection& connection);
  bool reply(Id id, Connection& connection, wire::Status status, std::int64_t number = 0,
             StoreTable::Value value = nullptr);
  bool flush(Id id, Connection& connection);
  void wake(const std::string& key);
  void expire();
  void drop(Id id);
  void set_due(Id id, Connection& connection, Clock::time_point due);
  void watch(int fd, Id id, std::uint32_t events, int operation);
  void listen(bool on);
  int milliseconds_to_next() const;

  static constexpr Id kListener = 0, kStop = 1;
  TcpStoreServerOptions options_;
  Fd listener_, epoll_, stop_;
  bool listening_ = true;
  Id next_ = 2;
  std::size_t buffered_ = 0;
  StoreTable table_;
  std::unordered_map<Id, Connection> connections_;
  std::set<Id> strangers_;
  std::multimap<std::string, Id> waiting_;
  std::set<std::pair<Clock::time_point, Id>> due_;
};

}  // namespace lockstep::detail
