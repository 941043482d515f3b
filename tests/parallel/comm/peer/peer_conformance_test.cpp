// What every communicator must do, of PeerCommunicators.
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

TEST_CASE("communicator: peers") {
  const std::size_t one_shot_bytes = GENERATE(0, PeerOptions().one_shot_bytes);
  const conformance::Ranks peers{
      .name = "peers", .run = [one_shot_bytes](int count, Milliseconds timeout, const conformance::Body& body) {
        return conformance::run_on_threads(
            make_peer_group(support::first_devices(count), {.timeout = timeout, .one_shot_bytes = one_shot_bytes}),
            body);
      }};
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(peers);
    }
}
