// Tokens, limits, what else may connect to the port, and the end of the server.
#include "lockstep/parallel/comm/store/tcp_store.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_wire.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::detail::Fd;
using lockstep::detail::Transfer;
using lockstep::test::in_threads;
using lockstep::test::soon;
using lockstep::test::thrown_by;
namespace wire = lockstep::detail::wire;

namespace {

const std::string kToken = "a token for tests, 0123456789";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What a client that cannot connect is told, once it had the time to hear it: a busy machine may need longer.
std::string refusal(const std::string& address) {
  std::string said;
  for (int milliseconds = 50; milliseconds < 60'000; milliseconds *= 2) {
    said = thrown_by<CommError>(
        [&] { make_tcp_store({.address = address, .connect_timeout = Milliseconds(milliseconds)}); });
    if (!contains(said, "does not answer") && !contains(said, std::strerror(ETIMEDOUT))) break;
  }
  return said;
}

// A connection without manners.
class Stranger {
 public:
  explicit Stranger(const TcpStoreServer& server) : Stranger(server.address()) {}
  explicit Stranger(const std::string& address) {
    const auto endpoints = detail::resolve(detail::parse_host_port("test", address));
    if (detail::connect_to(endpoints.front(), soon(), fd_) != 0) throw Error("cannot connect to " + address);
  }
  Transfer send(std::string_view bytes) { return detail::send_all(fd_.get(), bytes, soon()); }
  std::string receive(std::size_t bytes) {
    std::string out(bytes, '\0');
    if (detail::receive_all(fd_.get(), out.data(), bytes, soon()) != Transfer::done) return "";
    return out;
  }
  // Whether the other side closes the connection; what it still sends is thrown away.
  bool is_closed() {
    char byte;
    Transfer got;
    while ((got = detail::receive_all(fd_.get(), &byte, 1, soon())) == Transfer::done) {
    }
    return got == Transfer::closed;
  }
  // Greets a server without token as a client does.
  void greet() {
    receive(wire::kHelloBytes);
    std::string greeting(wire::kMagic);
    greeting += {wire::kVersion, '\0'};
    send(greeting + std::string(wire::kNonceBytes + wire::kProofBytes, '\0'));
    receive(wire::kVerdictBytes);
  }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

std::string request_of(const std::string& key, const std::string& value) {
  return wire::encode({.op = wire::Op::set, .key = key, .first = value});
}

void check_serves(Store& store) {
  store.set("alive", "yes");
  CHECK(store.get("alive", soon()) == "yes");
}

}  // namespace

TEST_CASE("a store lets in who knows its token, and nobody else") {
  const TcpStoreServer server({.token = kToken});
  const auto connect = [&](const std::string& token) { make_tcp_store({.address = server.address(), .token = token}); };
  CHECK_NOTHROW(connect(kToken));
  CHECK(contains(thrown_by<CommError>([&] { connect("another token, 0123456789"); }), "another token than this rank"));
  CHECK(contains(thrown_by<CommError>([&] { connect(""); }), "wants a token"));
  CHECK(contains(thrown_by<InvalidArgument>([&] { connect("short"); }), "at least 16 bytes, got 5"));

  const TcpStoreServer open;
  CHECK(contains(thrown_by<CommError>([&] { make_tcp_store({.address = open.address(), .token = kToken}); }),
                 "knows no token"));
}

TEST_CASE("a proof of the token cannot be used again, nor one side's as the other's") {
  const TcpStoreServer server({.token = kToken});
  Stranger first(server), second(server);
  const std::string nonce(wire::kNonceBytes, 'n');
  const std::string hello = first.receive(wire::kHelloBytes);
  std::string head(wire::kMagic);
  head += {wire::kVersion, '\1'};
  const auto verdict = [&](Stranger& stranger, const std::string& proof) {
    stranger.send(head + nonce + proof);
    const std::string answer = stranger.receive(wire::kVerdictBytes);
    return answer.empty() ? wire::Verdict::full : static_cast<wire::Verdict>(answer[0]);
  };
  const std::string right = wire::proof(kToken, "client", hello.substr(6), nonce);
  CHECK(verdict(first, right) == wire::Verdict::welcome);
  second.receive(wire::kHelloBytes);
  CHECK(verdict(second, right) == wire::Verdict::denied);
  CHECK(second.is_closed());
  Stranger third(server);
  const std::string its_hello = third.receive(wire::kHelloBytes);
  CHECK(verdict(third, wire::proof(kToken, "server", its_hello.substr(6), nonce)) == wire::Verdict::denied);
}

TEST_CASE("a client trusts only a server that knows the token") {
  // Somebody has taken the port: he wants a token, and welcomes everybody.
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  REQUIRE(::listen(listener.get(), 4) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  const std::string where = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const auto serve = [&](const std::string& hello) {
    std::string message;
    const auto thrown = in_threads(2, [&](int i) {
      if (i == 0) {
        message = thrown_by<CommError>([&] { make_tcp_store({.address = where, .token = kToken}); });
        return;
      }
      const Fd client(::accept(listener.get(), nullptr, nullptr));
      detail::configure_socket(client.get());
      detail::send_all(client.get(), hello + std::string(wire::kNonceBytes, 's'), soon());
      std::string greeting(wire::kGreetingBytes, '\0');
      detail::receive_all(client.get(), greeting.data(), greeting.size(), soon());
      detail::send_all(client.get(), std::string(1, '\0') + greeting.substr(wire::kHelloBytes), soon());
      char byte;
      detail::receive_all(client.get(), &byte, 1, soon());
    });
    CHECK(thrown == std::vector<std::string>(2));
    return message;
  };
  CHECK(contains(serve(std::string("LSTK\1\1", 6)), "does not know the token"));
  CHECK(contains(serve(std::string("LSTK\2\1", 6)), "expected a store of version 1, got version 2"));
  CHECK(contains(serve("HTTP/1"), "is not a Lockstep store"));
}

TEST_CASE("addresses beyond the loopback need a token") {
  CHECK(contains(thrown_by<InvalidArgument>([] { TcpStoreServer server({.address = "0.0.0.0"}); }),
                 "expected a token (LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN) for an address beyond the loopback"));
  CHECK(contains(thrown_by<InvalidArgument>([] { make_tcp_store({.address = "192.0.2.1:80"}); }), "expected a token"));
  const TcpStoreServer server({.address = "0.0.0.0", .token = kToken});
  const auto store = make_tcp_store({.address = "127.0.0.1:" + std::to_string(server.port()), .token = kToken});
  check_serves(*store);
}

TEST_CASE("addresses are host and port") {
  CHECK(detail::parse_host_port("x", "a.b:80").host == "a.b");
  CHECK(detail::parse_host_port("x", "[::1]:80").host == "::1");
  CHECK(to_string(detail::parse_host_port("x", "[::1]:80")) == "[::1]:80");
  for (const char* wrong : {"", "a", "a:", ":80", "a:0", "a:65536", "a:8x", "::1:80", "a:-1"})
    CHECK_THROWS_AS(detail::parse_host_port("x", wrong), InvalidArgument);
}

TEST_CASE("a token is read from a file that only its owner can read") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "token";
  test::write_bytes(path, kToken + "\n");
  ::chmod(path.c_str(), 0644);
  CHECK(contains(thrown_by<InvalidArgument>([&] { store_token_from_file(path); }), "only its owner can read"));
  ::chmod(path.c_str(), 0640);
  CHECK_THROWS_AS(store_token_from_file(path), InvalidArgument);
  ::chmod(path.c_str(), 0600);
  CHECK(store_token_from_file(path) == kToken);
  CHECK_THROWS_AS(store_token_from_file(folder / "none"), InvalidArgument);
  CHECK_THROWS_AS(store_token_from_file(folder.path().string()), InvalidArgument);
  test::write_bytes(path, "short\n");
  CHECK_THROWS_AS(store_token_from_file(path), InvalidArgument);

  ::unsetenv("LOCKSTEP_TOKEN_FILE");
  ::unsetenv("LOCKSTEP_TOKEN");
  CHECK(store_token().empty());
  ::setenv("LOCKSTEP_TOKEN", kToken.c_str(), 1);
  CHECK(store_token() == kToken);
  ::setenv("LOCKSTEP_TOKEN_FILE", path.c_str(), 1);
  CHECK(contains(thrown_by<InvalidArgument>([] { store_token(); }), "got both"));
  ::unsetenv("LOCKSTEP_TOKEN");
  test::write_bytes(path, kToken + kToken);
  CHECK(store_token() == kToken + kToken);
  ::unsetenv("LOCKSTEP_TOKEN_FILE");
}

TEST_CASE("a store has at most so many keys, bytes and connections") {
  const TcpStoreServer server({.max_keys = 3, .max_total_bytes = 100, .max_connections = 1});
  const auto store = make_tcp_store({.address = server.address()});
  store->set("a", std::string(60, 'x'));
  CHECK(contains(thrown_by<InvalidArgument>([&] { store->set("b", std::string(60, 'x')); }), "at most 100 bytes"));
  store->set("a", "");
  store->set("b", std::string(60, 'x'));
  store->set("c", "");
  CHECK(contains(thrown_by<InvalidArgument>([&] { store->set("d", ""); }), "at most 3 keys"));
  CHECK(contains(thrown_by<InvalidArgument>([&] { store->add("d", 1); }), "at most 3 keys"));
  CHECK(store->erase("c"));
  store->set("d", "");

  CHECK(contains(refusal(server.address()), "as many connections as it takes"));
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
  CHECK(contains(thrown_by<InvalidArgument>([&] { store->set(key, std::string(rest + 1, 'x')); }), "at most 60 bytes"));
  CHECK(store->erase(key));
  store->set("m", std::string(60 - std::string("n10m").size(), 'x'));
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
      if (detail::receive_all(client.get(), bytes.data(), bytes.size(), soon()) != Transfer::done) continue;
      const std::string verdict =
          std::string(1, static_cast<char>(wire::Verdict::full)) + std::string(wire::kProofBytes, '\0');
      if (refuses) detail::send_all(client.get(), verdict, soon());
      char more;
      detail::receive_all(client.get(), &more, 1, soon());  // until the client gives up
    }
  });
  const std::string said = refusal(cat("127.0.0.1:", ntohs(address.sin_port)));
  ::shutdown(listener.get(), SHUT_RDWR);
  refusing.join();
  CHECK(contains(said, "as many connections as it takes"));
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
        stranger.send("LSTK\1");
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
  const auto store = make_tcp_store({.address = server.address()});
  store->set("large", std::string(Store::kMaxValueBytes, 'x'));
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

TEST_CASE("clients of a store that has gone are told, also those that wait") {
  auto server = std::make_unique<TcpStoreServer>();
  const auto store = make_tcp_store({.address = server->address(), .host_rank = 3});
  const auto other = make_tcp_store({.address = server->address()});
  std::string waiting;
  const auto thrown = in_threads(2, [&](int i) {
    if (i == 0) {
      store->add("waiting", 1);
      waiting = thrown_by<CommError>([&] { store->get("never", soon()); });
    } else {
      other->get("waiting", soon());
      server.reset();
    }
  });
  CHECK(thrown == std::vector<std::string>(2));
  CHECK(contains(waiting, "[store] rank 3: the store at 127.0.0.1:"));
  CHECK(contains(waiting, "is gone"));
  CHECK(thrown_by<CommError>([&] { store->set("a", "b"); }) == waiting);
  CHECK(contains(thrown_by<CommError>([&] { other->try_get("a"); }), "is gone"));
}

TEST_CASE("a client waits for a server that starts later, until its deadline") {
  int port = 0;
  {
    const TcpStoreServer server;
    port = server.port();
  }
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const auto message =
      thrown_by<CommError>([&] { make_tcp_store({.address = address, .connect_timeout = Milliseconds(30)}); });
  CHECK(contains(message, "cannot reach the store at " + address));
  CHECK(contains(message, "refused"));

  std::unique_ptr<TcpStoreServer> server;
  const auto thrown = in_threads(2, [&](int i) {
    if (i == 0) {
      make_tcp_store({.address = address})->set("a", "b");
    } else {
      std::this_thread::sleep_for(Milliseconds(30));
      server = std::make_unique<TcpStoreServer>(TcpStoreServerOptions{.port = port});
    }
  });
  CHECK(thrown == std::vector<std::string>(2));
  CHECK(contains(thrown_by<CommError>([&] { TcpStoreServer second({.port = port}); }), "cannot bind to " + address));
}
