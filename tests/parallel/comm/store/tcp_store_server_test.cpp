// Limits of a TCP store, and what else may connect to its port.
#include "lockstep/parallel/comm/store/tcp_store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_wire.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "parallel/comm/store/tcp_store_support.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using lockstep::detail::Fd;
using lockstep::detail::SocketResult;
using lockstep::test::check_serves;
using lockstep::test::in_threads;
using lockstep::test::kToken;
using lockstep::test::soon;
using lockstep::test::Stranger;
using support::message_of;
using support::missing;
namespace wire = lockstep::detail::wire;

namespace {

// What a client that cannot connect is told, once it had the time to hear it: a busy machine may need longer.
std::string connect_refusal(const std::string& address) {
  std::string said;
  for (int milliseconds = 50; milliseconds < 60'000; milliseconds *= 2) {
    said = message_of<CommError>(
        [&] { make_tcp_store({.address = address, .connect_timeout = Milliseconds(milliseconds)}); });
    if (!missing(said, {"does not answer"}).empty() && !missing(said, {std::strerror(ETIMEDOUT)}).empty()) break;
  }
  return said;
}

std::string request_of(const std::string& key, const std::string& value) {
  return wire::encode({.op = wire::Op::set, .key = key, .first = value});
}

}  // namespace

TEST_CASE("a store has at most so many keys, bytes and connections") {
  const TcpStoreServer server({.max_keys = 3, .max_total_bytes = 100, .max_connections = 1});
  const auto store = make_tcp_store({.address = server.address()});
  store->set("a", std::string(60, 'x'));
  CHECK(missing(message_of<InvalidArgument>([&] { store->set("b", std::string(60, 'x')); }), {"at most 100 bytes"}) ==
        "");
  store->set("a", "");
  store->set("b", std::string(60, 'x'));
  store->set("c", "");
  CHECK(missing(message_of<InvalidArgument>([&] { store->set("d", ""); }), {"at most 3 keys"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { store->add("d", 1); }), {"at most 3 keys"}) == "");
  CHECK(store->erase("c"));
  store->set("d", "");

  CHECK(missing(connect_refusal(server.address()), {"as many connections as it takes"}) == "");
  CHECK(store->try_get("d") == "");
}

TEST_CASE("a key that is set again takes its place once") {
  const TcpStoreServer server({.max_keys = 2, .max_total_bytes = 60});
  const auto store = make_tcp_store({.address = server.address()});
  const std::string key = "the name of a step, in full";
  for (int i = 0; i < 10; ++i) {
    store->set(key, std::to_string(i));
    CHECK(store->add("n", 1) == i + 1);
    CHECK(store->compare_set(key, std::to_string(i), "x") == "x");
  }
  // All of it, and not a byte more.
  const std::size_t rest = 60 - key.size() - std::string("n10").size();
  store->set(key, std::string(rest, 'x'));
  CHECK(missing(message_of<InvalidArgument>([&] { store->set(key, std::string(rest + 1, 'x')); }),
                {"at most 60 bytes"}) == "");
  CHECK(store->erase(key));
  store->set("m", std::string(60 - std::string("n10m").size(), 'x'));
}

TEST_CASE("who connects between two stores of one port waits for the second") {
  auto first = std::make_unique<TcpStoreServer>();
  const std::string address = first->address();
  const int port = first->port();
  const Fd listener(::fcntl(first->listener(), F_DUPFD_CLOEXEC, 0));
  first.reset();
  Stranger early(address);
  const TcpStoreServer second({.port = port, .listener = listener.get()});
  CHECK(second.address() == address);
  early.greet();
  CHECK(early.send(request_of("early", "yes")) == SocketResult::done);
  CHECK(make_tcp_store({.address = address})->get("early", soon()) == "yes");
}

TEST_CASE("who cannot connect is told what the store said, not that the last attempt ran out of time") {
  // Refuses every other connection, the first one too, and does not answer those between.
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  REQUIRE(::listen(listener.get(), 16) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  std::thread refusing([&] {
    for (bool refuses = true;; refuses = !refuses) {
      const Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!client) return;
      std::string bytes = std::string(wire::kMagic) + wire::kVersion + '\0' + std::string(wire::kNonceBytes, 'n');
      detail::send_all(client.get(), bytes, soon());
      bytes.resize(wire::kGreetingBytes);
      if (detail::receive_all(client.get(), bytes.data(), bytes.size(), soon()) != SocketResult::done) continue;
      const std::string verdict =
          std::string(1, static_cast<char>(wire::Verdict::full)) + std::string(wire::kProofBytes, '\0');
      if (refuses) detail::send_all(client.get(), verdict, soon());
      char more;
      detail::receive_all(client.get(), &more, 1, soon());  // until the client gives up
    }
  });
  const std::string said = connect_refusal(cat("127.0.0.1:", ntohs(address.sin_port)));
  ::shutdown(listener.get(), SHUT_RDWR);
  refusing.join();
  CHECK(missing(said, {"as many connections as it takes"}) == "");
}

TEST_CASE("what else connects to a store's port does not disturb its ranks") {
  const std::string token = GENERATE(std::string(), kToken);
  const TcpStoreServer server({.token = token, .max_strangers = 8, .handshake_timeout = Milliseconds(60'000)});
  const auto store = make_tcp_store({.address = server.address(), .token = token});
  store->set("before", "kept");

  SECTION("garbage") {
    for (const std::string& garbage :
         {std::string("GET / HTTP/1.1\r\nHost: x\r\nAccept: a great many things, longer than a greeting is\r\n\r\n"),
          std::string(100'000, '\xff'), std::string(100'000, '\0'), std::string("LSTK") + std::string(66, '\x7f')}) {
      Stranger stranger(server);
      stranger.send(garbage);
      CHECK(stranger.is_closed());
    }
  }
  SECTION("more strangers than it takes: the oldest go, and ranks still come in") {
    std::vector<std::unique_ptr<Stranger>> silent;
    for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<Stranger>(server));
    check_serves(*make_tcp_store({.address = server.address(), .token = token}));
    for (std::size_t i = 0; i < 32; ++i) REQUIRE(silent[i]->is_closed());
    CHECK(silent.back()->receive(wire::kHelloBytes).size() == wire::kHelloBytes);
  }
  SECTION("a flood of connections while ranks come in") {
    std::atomic<bool> stop = false;
    const auto thrown = in_threads(3, [&](int i) {
      while (i < 2 && !stop) {
        Stranger stranger(server);
        stranger.send(std::string("LSTK") + wire::kVersion);
      }
      if (i < 2) return;
      struct Stop {
        std::atomic<bool>& flag;
        ~Stop() { flag = true; }
      } at_the_end{stop};
      for (int n = 0; n < 20; ++n) make_tcp_store({.address = server.address(), .token = token})->add("came", 1);
    });
    CHECK(thrown == std::vector<std::string>(3));
    CHECK(store->get("came", soon()) == "20");
  }
  CHECK(store->get("before", soon()) == "kept");
  check_serves(*store);
}

TEST_CASE("strangers that say nothing go after a while") {
  const TcpStoreServer server({.token = kToken, .handshake_timeout = Milliseconds(30)});
  Stranger silent(server), half(server);
  half.send("LSTK");
  CHECK(silent.is_closed());
  CHECK(half.is_closed());
}

TEST_CASE("a connection that breaks the rules is cut off, and the others go on") {
  // What is wrong is so at once, and not when its time is over.
  const TcpStoreServer server({.transfer_timeout = Milliseconds(600'000)});
  const auto store = make_tcp_store({.address = server.address()});
  const std::string whole = request_of("key", "value");
  const auto is_cut_off = [&](const std::string& bytes) {
    Stranger rank(server);
    rank.greet();
    rank.send(bytes);
    const bool closed = rank.is_closed();
    check_serves(*store);
    return closed;
  };
  std::string wrong = whole;
  wrong[4] = 9;  // version
  CHECK(is_cut_off(wrong));
  wrong = whole;
  wrong[5] = 77;  // operation
  CHECK(is_cut_off(wrong));
  wrong = whole;
  wrong[14] = '\xff';  // length of the key
  CHECK(is_cut_off(wrong));
  CHECK(is_cut_off(std::string("\xff\xff\xff\x7f", 4)));  // a request of 2 GiB
  CHECK(is_cut_off(std::string("\0\0\0\0", 4)));
  CHECK(is_cut_off(whole + whole));
  CHECK(is_cut_off(wire::encode({.op = wire::Op::get, .number = -1, .key = "never"}) + "x"));
}

TEST_CASE("a request that stops on its way ends the connection") {
  const TcpStoreServer server({.transfer_timeout = Milliseconds(50)});
  const auto store = make_tcp_store({.address = server.address()});
  const std::string whole = request_of("key", "value");
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4}, whole.size() - 1}) {
    Stranger rank(server);
    rank.greet();
    rank.send(whole.substr(0, bytes));
    CHECK(rank.is_closed());
  }
  CHECK_FALSE(store->try_get("key").has_value());
  check_serves(*store);
}

TEST_CASE("an answer that is not taken ends the connection, and costs no more than itself") {
  const TcpStoreServer server({.transfer_timeout = Milliseconds(50)});
  // A busy machine may keep a client from sending so much in the server's time.
  const std::string large(Store::kMaxValueBytes, 'x');
  const auto set = [&] {
    try {
      make_tcp_store({.address = server.address()})->set("large", large);
      return true;
    } catch (const CommError&) {
      return false;
    }
  };
  for (const Deadline patience = soon(); !set();) REQUIRE_FALSE(patience.passed());
  const auto store = make_tcp_store({.address = server.address()});
  Stranger rank(server);
  const int small = 4096;
  ::setsockopt(rank.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  rank.greet();
  const std::string ask = wire::encode({.op = wire::Op::get, .number = -1, .key = "large"});
  rank.send(ask);
  // Does not read, and asks for more, which is not even looked at while an answer is on its way.
  rank.receive(1);
  rank.send(ask);
  check_serves(*store);
  CHECK(detail::wait_until_ready(rank.fd(), 0, soon()));  // an error or a hang-up: the server has cut it off
  check_serves(*store);
}

TEST_CASE("one who waits for a key and goes is forgotten") {
  const TcpStoreServer server;
  const auto store = make_tcp_store({.address = server.address()});
  for (int i = 0; i < 20; ++i) {
    Stranger rank(server);
    rank.greet();
    rank.send(wire::encode({.op = wire::Op::get, .number = -1, .key = "later"}));
  }
  store->set("later", "now");
  CHECK(store->get("later", soon()) == "now");
}
