// Two groups of ranks on the same devices, each with threads and streams of its own: neither waits for the other.
#include <thread>

#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/counter.h"
#include "support/devices.h"

using namespace lockstep;
using lockstep::test::Counter;
using support::devices_at;
using support::first_devices;

namespace {

constexpr Milliseconds kSoon{60'000};  // red, not slow

// A rank's streams: of its own device and of the one that its data come from.
struct Streams {
  explicit Streams(Device device) : own(device), source(devices_at({2})[0]), on_own(own), on_source(source) {}
  Stream own, source;
  StreamScope on_own, on_source;
};

Tensor four_numbers(double value, Device device) { return full({4}, value, {.dtype = DType::f64, .device = device}); }

std::string result(const Tensor& sum, const Stream& stream) {
  synchronize(stream, kSoon);
  return cat(sum.item<double>());
}

}  // namespace

TEST_CASE("two groups of ranks on the same devices: copies of one do not wait for collectives of the other") {
  // Work that a rank enqueues behind its collective must not hold up what another group enqueues before its own.
  if (default_stream(first_devices(1)[0]).synchronous()) return;  // nothing is enqueued there
  auto first = make_thread_group(first_devices(2), {.timeout = kSoon}),
       second = make_thread_group(first_devices(2), {.timeout = kSoon});
  const Counter first_called, second_called;
  // The first group's rank 0 and the second's rank 1 call, and copy; then the others copy, and call.
  const auto ahead = [](const Counter& called, int value) {
    return [called, value](Communicator& comm) {
      Streams streams(comm.device());
      const Tensor x = four_numbers(value, comm.device()), far = four_numbers(100, streams.source.device());
      comm.all_reduce(x);
      const Tensor more = far.to(comm.device());
      called.add();
      return result((x + more).narrow(0, 0, 1), streams.own);
    };
  };
  const auto behind = [](const Counter& called, int value) {
    return [called, value](Communicator& comm) {
      Streams streams(comm.device());
      const Tensor far = four_numbers(value, streams.source.device());
      called.reaches(1);
      const Tensor x = far.to(comm.device());
      comm.all_reduce(x);
      return result(x.narrow(0, 0, 1), streams.own);
    };
  };
  std::vector<std::string> said(4);
  std::vector<std::thread> threads;
  const auto start = [&](std::unique_ptr<Communicator>& comm, const conformance::Body& body) {
    threads.emplace_back([body, mine = std::move(comm), &text = said[threads.size()]]() mutable {
      text = conformance::outcome(body, *mine);
      mine.reset();
    });
  };
  start(first[0], ahead(first_called, 1));
  start(first[1], behind(second_called, 2));
  start(second[0], behind(first_called, 10));
  start(second[1], ahead(second_called, 20));
  for (std::thread& thread : threads) thread.join();
  conformance::drain_devices();
  CHECK(said == std::vector<std::string>{"103", "3", "30", "130"});
}
