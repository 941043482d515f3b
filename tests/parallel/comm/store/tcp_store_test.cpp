// Addresses, a server that is not there yet, and one that has gone.
#include "lockstep/parallel/comm/store/tcp_store.h"

#include <fstream>
#include <random>
#include <thread>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "parallel/comm/store/tcp_store_support.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using lockstep::test::in_threads;
using lockstep::test::soon;
using support::message_of;
using support::missing;

namespace {

// A server on a port that the system gives to no client: it stays free when the server has gone.
std::unique_ptr<TcpStoreServer> server_for_good() {
  int low = 32'768, high = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  if (low <= 10'000) low = 32'768;  // clients may get any: those that they seldom get
  std::mt19937 draw(std::random_device{}());
  for (int tries = 0;; ++tries) {
    try {
      return std::make_unique<TcpStoreServer>(
          TcpStoreServerOptions{.port = std::uniform_int_distribution(10'000, low - 1)(draw)});
    } catch (const CommError&) {  // somebody has it
      if (tries == 100) throw;
    }
  }
}

}  // namespace

TEST_CASE("addresses are host and port") {
  CHECK(detail::parse_host_port("x", "a.b:80").host == "a.b");
  CHECK(detail::parse_host_port("x", "[::1]:80").host == "::1");
  CHECK(to_string(detail::parse_host_port("x", "[::1]:80")) == "[::1]:80");
  for (const char* wrong : {"", "a", "a:", ":80", "a:0", "a:65536", "a:8x", "::1:80", "a:-1"})
    CHECK_THROWS_AS(detail::parse_host_port("x", wrong), InvalidArgument);
}

TEST_CASE("clients of a store that has gone are told, also those that wait") {
  auto server = std::make_unique<TcpStoreServer>();
  const auto store = make_tcp_store({.address = server->address(), .host_rank = 3});
  const auto other = make_tcp_store({.address = server->address()});
  std::string waiting;
  const auto thrown = in_threads(2, [&](int i) {
    if (i == 0) {
      store->add("waiting", 1);
      waiting = message_of<CommError>([&] { store->get("never", soon()); });
    } else {
      other->get("waiting", soon());
      server.reset();
    }
  });
  CHECK(thrown == std::vector<std::string>(2));
  CHECK(missing(waiting, {"[store] rank 3: the store at 127.0.0.1:"}) == "");
  CHECK(missing(waiting, {"is gone"}) == "");
  CHECK(message_of<CommError>([&] { store->set("a", "b"); }) == waiting);
  CHECK(missing(message_of<CommError>([&] { other->try_get("a"); }), {"is gone"}) == "");
}

TEST_CASE("a client waits for a server that starts later, until its deadline") {
  const int port = server_for_good()->port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const auto message =
      message_of<CommError>([&] { make_tcp_store({.address = address, .connect_timeout = Milliseconds(30)}); });
  CHECK(missing(message, {"cannot reach the store at " + address}) == "");
  CHECK(missing(message, {"refused"}) == "");

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
  CHECK(missing(message_of<CommError>([&] { TcpStoreServer second({.port = port}); }), {"cannot bind to " + address}) ==
        "");
}
