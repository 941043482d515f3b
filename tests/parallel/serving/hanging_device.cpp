// A pool whose host device hangs in the middle of a task. The faults are the host backend's: not for CUDA devices.
#include "lockstep/runtime/host/faults.h"
#include "parallel/serving/served.h"

using namespace parallel_test;
using namespace std::chrono_literals;

TEST_CASE("a device that hangs in a task is taken out until it goes on, and another one answers") {
  struct Product : Module<Product> {
    Parameter weight{tensor({1, 10}, {2}), false};
    Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
    void members(Members& m) override { m("weight", weight); }
  };
  // Inline, tasks run in the replica's own thread; in strict mode one that hangs may hold up streams of other devices.
  if (default_stream(device_at(0)).synchronous() || default_stream(device_at(0)).checked()) return;
  const CapturedLog log;
  ReplicaPool pool(Product(), {.devices = first_devices(2), .max_batch_samples = 1, .hang_timeout = 50ms});
  // What hangs is to be a request's: not the copies of weights, for which both replicas wait.
  for (const Device device : first_devices(2)) synchronize(device);
  for (int task = 1; task <= 3; ++task) {
    detail::host_faults().hang_task(task);
    auto stuck = pool.submit(row(1));
    CHECK(values(stuck.get()) == answer_to(1));
    for (int i = 0; i < 4; ++i) CHECK(values(pool.submit(row(i)).get()) == answer_to(i));
    detail::host_faults().release();
    await(pool, [](const ReplicaPoolStats& stats) {
      return std::all_of(stats.replicas.begin(), stats.replicas.end(),
                         [](const ReplicaStats& replica) { return replica.state == ReplicaState::serving; });
    });
  }
  detail::host_faults().clear();
  CHECK(pool.stats().failed == 0);
  CHECK(pool.stats().moved >= 1);
}
