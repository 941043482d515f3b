// What every communicator must do, of one rank alone.
#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using support::message_of;
using support::missing;

TEST_CASE("communicator: loopback") {
  const conformance::Ranks alone{.name = "loopback",
                                 .run =
                                     [](int, Milliseconds timeout, const conformance::Body& body) {
                                       std::vector<std::unique_ptr<Communicator>> ranks;
                                       ranks.push_back(make_loopback_communicator(accelerators().at(0), timeout));
                                       return conformance::run_on_threads(std::move(ranks), body);
                                     },
                                 .most = 1};
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(alone);
    }
}

TEST_CASE("loopback: is made when it is asked for by a rank alone") {
  CHECK(std::string(make_communicator({.device = accelerators().at(0), .backend = "loopback"})->backend()) ==
        "loopback");
  CHECK_THROWS_AS(make_loopback_communicator(Device::cpu()), InvalidArgument);
}

TEST_CASE("loopback: one that was aborted is broken") {
  const auto alone = make_loopback_communicator(accelerators().at(0));
  alone->abort("no more");
  CHECK(missing(message_of<CommError>([&] { alone->barrier(); }), {"rank 0 aborted: no more"}) == "");
}
