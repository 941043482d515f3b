// Shared-memory ranks that are threads.
#include "lockstep/parallel/comm/shared_memory_communicator.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/device_sets.h"

using namespace lockstep;
using support::hosts;

namespace {

conformance::Ranks threads() {
  return {.name = "threads", .run = [](int count, Milliseconds timeout, const conformance::Body& body) {
            return conformance::run_on_threads(make_thread_group(hosts(count), {.timeout = timeout}), body);
          }};
}

}  // namespace

TEST_CASE("communicator: shared memory, ranks as threads") {
  for (const conformance::Check& check : conformance::checks())
    DYNAMIC_SECTION(check.name) { check.run(threads()); }
}
