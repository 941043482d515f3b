// Batches on their way to a device: the stream and the pinned memory of Transfer.
#include "lockstep/tensor/data/transfer.h"

#include <thread>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;

TEST_CASE("transfer: pinned memory is not written again before the copies from it are over") {
  const Device device = device_at(1);
  if (default_stream(device).synchronous()) return;
  constexpr int kBatches = 12;  // more than may be under way
  detail::Transfer transfer(device);
  detail::host_faults().hang_task(1);  // the first of the copies
  // When the ninth waits as it should, only this lets it go on; when it does not, it is done by then.
  std::thread later([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    detail::host_faults().clear();
  });
  std::vector<Tensor> batches;
  std::vector<Event> sent;
  for (int i = 0; i < kBatches; ++i) {
    Tensor batch = full({30'000}, i, {.dtype = DType::f32});  // of a size that other tests do not use
    sent.push_back(transfer.send({&batch}));
    batches.push_back(batch);
  }
  later.join();
  for (int i = 0; i < kBatches; ++i) {
    const auto at = static_cast<std::size_t>(i);
    transfer.receive(sent[at], {&batches[at]});
    CHECK(batches[at].sum().item<double>() == 30'000.0 * i);
  }
}

TEST_CASE("transfer: a batch comes on a stream of its own, and its memory stays until the receiver is done with it") {
  const Device device = device_at(1);
  detail::Transfer transfer(device);
  for (int i = 0; i < 4; ++i) {
    Stream consumer(device);
    Tensor batch = full({5'000}, i, {.dtype = DType::f64});
    const Event sent = transfer.send({&batch});
    Tensor sum;
    {
      const StreamScope scope(consumer);
      transfer.receive(sent, {&batch});
      sum = batch.sum();
    }
    batch = {};
    Tensor next = full({5'000}, 7, {.dtype = DType::f64});  // gets its memory, on the transfer's stream
    transfer.receive(transfer.send({&next}), {&next});
    const StreamScope scope(consumer);
    CHECK(sum.item<double>() == 5'000.0 * i);
  }
}
