// A rank of a shared-memory group that was stopped while it waited.
#include "lockstep/parallel/comm/shm/channel.h"
#include "lockstep/parallel/comm/shm/control_block.h"
#include "support/catch.h"

using namespace lockstep;
using detail::Channel;
using detail::ControlBlock;

TEST_CASE("shared memory: a rank that was stopped while it waited is named, not the one that has come since") {
  ControlBlock control(
      {.ranks = 3, .threads = 1, .slot_bytes = 4096, .pair_slot_bytes = 4096, .host_slot_bytes = 4096});
  // Rank 2 waits for the first step of rank 0, and is stopped.
  auto& arrived = control.stream_region().states[0].arrived;
  control.set_waits_for(2, 0, arrived, 1);
  CHECK(control.end_of_waits(2) == 0);
  arrived.store(1);  // rank 0 comes, and is busy elsewhere
  Channel from_2(control, control.pair_region(2, 1), {2, 1}, 1);
  float number = 0;
  const Collective recv{.kind = Collective::Kind::recv,
                        .dtype = DType::f32,
                        .count = 1,
                        .peer = 2,
                        .output = &number,
                        .sequence = 1,
                        .timeout = Milliseconds(20)};
  try {
    from_2.perform(recv);
    FAIL_CHECK("expected a CommError");
  } catch (const CommError& error) {
    INFO(error.what());
    CHECK(error.rank == 2);
  }
  CHECK(control.end_of_waits(2) == 2);
}
