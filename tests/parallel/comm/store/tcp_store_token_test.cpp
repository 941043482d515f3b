// Who may connect to a TCP store.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/comm/store/store_wire.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "parallel/comm/store/tcp_store_support.h"
#include "support/catch.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::detail::Fd;
using lockstep::test::check_serves;
using lockstep::test::in_threads;
using lockstep::test::kToken;
using lockstep::test::soon;
using lockstep::test::Stranger;
using support::message_of;
using support::missing;
namespace wire = lockstep::detail::wire;

TEST_CASE("a store lets in who knows its token, and nobody else") {
  const TcpStoreServer server({.token = kToken});
  const auto connect = [&](const std::string& token) { make_tcp_store({.address = server.address(), .token = token}); };
  CHECK_NOTHROW(connect(kToken));
  CHECK(missing(message_of<CommError>([&] { connect("another token, 0123456789"); }),
                {"another token than this rank"}) == "");
  CHECK(missing(message_of<CommError>([&] { connect(""); }), {"wants a token"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { connect("short"); }), {"at least 16 bytes, got 5"}) == "");

  // Launchers and ranks of one store have tokens of their own.
  const char other[] = "the token of ranks, 0123456789";
  const TcpStoreServer both({.token = kToken, .other_token = other});
  const auto with_token = [&](const std::string& token) {
    return make_tcp_store({.address = both.address(), .token = token});
  };
  with_token(kToken)->set("key", "value");
  CHECK(with_token(other)->try_get("key") == "value");
  CHECK(missing(message_of<CommError>([&] { with_token("another token, 0123456789"); }),
                {"another token than this rank"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { TcpStoreServer({.token = kToken, .other_token = "short"}); }),
                {"at least 16 bytes, got 5"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { TcpStoreServer({.other_token = other}); }),
                {"expected a token along with another, got none"}) == "");

  const TcpStoreServer open;
  CHECK(missing(message_of<CommError>([&] { make_tcp_store({.address = open.address(), .token = kToken}); }),
                {"knows no token"}) == "");
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
        message = message_of<CommError>([&] { make_tcp_store({.address = where, .token = kToken}); });
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
  CHECK(missing(serve(std::string("LSTK") + wire::kVersion + '\1'), {"does not know the token"}) == "");
  CHECK(missing(serve("LSTK\1\1"), {"expected a store of version 2, got version 1"}) == "");
  CHECK(missing(serve("HTTP/1"), {"is not a Lockstep store"}) == "");
}

TEST_CASE("addresses beyond the loopback need a token") {
  CHECK(missing(message_of<InvalidArgument>([] { TcpStoreServer server({.address = "0.0.0.0"}); }),
                {"expected a token (LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN) for an address beyond the loopback"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { make_tcp_store({.address = "192.0.2.1:80"}); }),
                {"expected a token"}) == "");
  const TcpStoreServer server({.address = "0.0.0.0", .token = kToken});
  const auto store = make_tcp_store({.address = "127.0.0.1:" + std::to_string(server.port()), .token = kToken});
  check_serves(*store);
}

TEST_CASE("a token is read from a file that only its owner can read") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "token";
  test::write_bytes(path, kToken + "\n");
  ::chmod(path.c_str(), 0644);
  CHECK(missing(message_of<InvalidArgument>([&] { store_token_from_file(path); }), {"only its owner can read"}) == "");
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
  CHECK(missing(message_of<InvalidArgument>([] { store_token(); }), {"got both"}) == "");
  ::unsetenv("LOCKSTEP_TOKEN");
  test::write_bytes(path, kToken + kToken);
  CHECK(store_token() == kToken + kToken);
  ::unsetenv("LOCKSTEP_TOKEN_FILE");
}
