// What a store does when a process has gone that has said so before.
#include "lockstep/parallel/comm/store/will.h"

#include <sys/socket.h>

#include "parallel/comm/store/tcp_store_support.h"
#include "support/messages.h"

using namespace lockstep;
using lockstep::test::kToken;
using lockstep::test::soon;
using lockstep::test::Stranger;
using support::message_of;
namespace wire = lockstep::detail::wire;

TEST_CASE("a store sets a key once the connection of a will has closed") {
  const TcpStoreServer server({.token = kToken});
  const TcpStoreOptions options{.address = server.address(), .token = kToken};
  const auto store = make_tcp_store(options);
  auto will = detail::leave_will(options, "gone", "it ended");
  auto late = detail::leave_will(options, "left", "it ended");
  CHECK_FALSE(store->try_get("gone"));
  std::string waiting;
  const auto thrown = test::in_threads(2, [&](int i) {
    if (i == 0)
      waiting = store->get("gone", soon());
    else
      will.close();
  });
  CHECK(thrown == std::vector<std::string>(2));
  CHECK(waiting == "it ended");

  store->set("left", "before that");
  auto last = detail::leave_will(options, "last", "it ended");
  late.close();
  last.close();
  CHECK(store->get("last", soon()) == "it ended");  // the store has heard of both
  CHECK(store->get("left", soon()) == "before that");
}

TEST_CASE("a will is not executed for a connection that the store itself has closed") {
  const TcpStoreServer server;
  const auto store = make_tcp_store({.address = server.address()});
  const std::string will = wire::encode({.op = wire::Op::will, .key = "gone", .first = "it ended"});
  const auto left = [&] {
    Stranger stranger(server);
    stranger.greet();
    stranger.send(will);
    stranger.receive(4 + wire::kReplyHead);
    return stranger;
  };
  {
    Stranger stranger = left();
    stranger.send(std::string(4, '\xff'));  // a request longer than any
    CHECK(stranger.is_closed());
    CHECK_FALSE(store->try_get("gone"));
  }
  CHECK_FALSE(store->try_get("gone"));
  {
    Stranger stranger = left();
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // closes with a reset
    ::setsockopt(stranger.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  CHECK(store->get("gone", soon()) == "it ended");
}

TEST_CASE("a will is small") {
  const TcpStoreServer server;
  const TcpStoreOptions options{.address = server.address()};
  const std::string long_text(Store::kMaxKeyBytes + 1, 'x');
  CHECK(message_of<InvalidArgument>([&] { detail::leave_will(options, "gone", long_text); }) ==
        "[leave_will] expected a value of at most 1024 bytes for 'gone', got 1025");
  CHECK_THROWS_AS(detail::leave_will(options, long_text, ""), InvalidArgument);
}
