// What every communicator must do, of PeerCommunicators.
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

TEST_CASE("communicator: peers") {
  const conformance::Ranks peers{
      .name = "peers", .run = [](int count, Milliseconds timeout, const conformance::Body& body) {
        return conformance::run_on_threads(make_peer_group(support::first_devices(count), {.timeout = timeout}), body);
      }};
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(peers);
    }
}
