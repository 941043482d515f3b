// Copies of a snapshot that take long: what is enqueued after the save waits for them.
#include <atomic>
#include <chrono>
#include <thread>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "lockstep/runtime/host/faults.h"
#include "parallel/checkpoint/seen.h"
#include "parallel/sharding/support.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using lockstep::test::TemporaryFolder;

namespace {

// The next task of the device, which `first` enqueues, hangs before `then` is called, and until what that enqueues is
// done (which it cannot be where it waits for the task, as it must) or some time is over.
template <class First, class Then>
void while_it_hangs(Device device, First&& first, Then&& then) {
  synchronize(device);
  auto& faults = lockstep::detail::host_faults();
  faults.clear();
  faults.hang_task(current_stream(device).synchronous() ? 0 : 1);
  std::atomic<bool> done = false, over = false;
  const std::jthread watch([&] {  // joins also when something throws
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (!done && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    over = true;
    faults.release();
  });
  first();
  while (!faults.struck(device.index()) && !over && !current_stream(device).synchronous()) std::this_thread::yield();
  then();
  synchronize(current_stream(device));
  done = true;
  faults.clear();
}

}  // namespace

TEST_CASE("what is enqueued after a save waits for the copies of its snapshot, however long they take") {
  const TemporaryFolder folder;
  check_ranks(1, [&](Communicator& c, Seen& seen) {
    CheckpointWriter writer(folder.path().string(), c);
    const Tensor weights = counting({64, 64}, c.device());
    while_it_hangs(
        c.device(),
        [&] {
          writer.save(1, {{"w", weights}});
        },
        [&] { weights.detach().add_(1); });
    writer.close();
    SEE(values(Checkpoint(folder / "step-00000001").load("w")) == values(counting({64, 64})));
    SEE(values(weights) == values(counting({64, 64}, Device::cpu(), 2)));
  });
}

TEST_CASE("an optimizer of parts waits for the copies of their snapshot, however long they take") {
  const TemporaryFolder folder;
  check_ranks(1, [&](Communicator& c, Seen& seen) {
    FullyShardedDataParallel net(Marked(), c, {.wrap = wrap_modules<Block>()});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    loss_of(net(rows_of(c, 0))).backward();
    optimizer.step();
    const std::vector<NamedTensor> model = net.whole_state_dict();
    CheckpointWriter writer(folder.path().string(), c, {.keep = 2});
    const auto saved_while_it_steps = [&](std::int64_t step, const std::vector<CheckpointEntry>& entries) {
      while_it_hangs(
          c.device(), [&] { writer.save(step, entries); }, [&] { optimizer.step(); });
    };
    saved_while_it_steps(1, net.checkpoint_entries(""));
    const std::vector<NamedTensor> stepped = net.whole_state_dict(optimizer);
    saved_while_it_steps(2, net.checkpoint_entries(optimizer, ""));
    writer.close();
    const auto same = [&](const Checkpoint& found, const std::vector<NamedTensor>& wanted) {
      bool all = found.names().size() == wanted.size();
      for (const NamedTensor& each : wanted) all = all && values_of({{"", found.load(each.name)}}) == values_of({each});
      return all;
    };
    SEE(same(Checkpoint(folder / "step-00000001"), model));
    SEE(same(Checkpoint(folder / "step-00000002"), stepped));
    SEE(values_of(net.whole_state_dict()) != values_of(model));
  });
}
