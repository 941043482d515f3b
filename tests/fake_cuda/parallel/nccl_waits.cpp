// How a rank waits for NCCL: communicators that say when they are ready, and those whose calls block.
#if __has_include(<nccl.h>)
#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/conformance.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::first_devices;

namespace {

std::unique_ptr<Communicator> alone(const NcclOptions& options) {
  return make_nccl_communicator(make_local_store(), 0, 1, first_devices(1)[0], options);
}

Tensor ones_on(const Communicator& comm) { return ones({1000}, {.dtype = DType::f32, .device = comm.device()}); }

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "nothing";
}

bool becomes(const std::function<bool()>& condition) {
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (!condition() && !patience.passed()) std::this_thread::sleep_for(Milliseconds(1));
  return condition();
}

// How often this thread has gone to sleep.
long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

TEST_CASE("NCCL: who waits for a collective to be enqueued asks again and again at first, and does not sleep") {
  constexpr int kPolls = 20;
  const auto comm = alone({.timeout = conformance::kPatience});
  const Tensor x = ones_on(*comm);
  long fewest = kPolls;
  for (int i = 0; i < 300 && fewest > 10; ++i) {  // on a machine that is busy the time may be over too soon
    fake_cuda::slow_nccl(kPolls);
    const int before = fake_cuda::calls_of("ncclCommGetAsyncError");
    const long slept = sleeps();
    comm->all_reduce(x);
    fewest = std::min(fewest, sleeps() - slept);
    fake_cuda::heal_nccl();
    CHECK(fake_cuda::calls_of("ncclCommGetAsyncError") - before >= kPolls);
    synchronize(comm->device());
  }
  CHECK(fewest <= 10);
}

TEST_CASE("NCCL: who waits for long sleeps between the questions") {
  const auto comm = alone({.timeout = Milliseconds(300)});
  fake_cuda::stall_nccl(native_ordinal(comm->device()));
  const int before = fake_cuda::calls_of("ncclCommGetAsyncError");
  CHECK(conformance::missing(error_of([&] { comm->all_reduce(ones_on(*comm)); }), {"ready within 300 ms"}) == "");
  fake_cuda::heal_nccl();
  // 200 sleeps of 50 us at least, and then of a millisecond, after 200 us of questions of which one takes a
  // microsecond.
  CHECK(fake_cuda::calls_of("ncclCommGetAsyncError") - before < 2000);
}

TEST_CASE("NCCL: a call that blocks is ended at its time-out by another thread") {
  const auto comm = alone({.timeout = conformance::kPatience, .blocking = true});
  const Tensor x = ones_on(*comm);
  comm->all_reduce(x);
  synchronize(comm->device());
  const int aborted = fake_cuda::nccl_counts().aborted, asked = fake_cuda::nccl_counts().in_progress;
  fake_cuda::stall_nccl(native_ordinal(comm->device()));
  comm->set_timeout(Milliseconds(100));
  const std::string text = error_of([&] { comm->all_reduce(x); });
  fake_cuda::heal_nccl();
  CHECK(conformance::missing(text, {"[all_reduce] rank 0", "ready within 100 ms"}) == "");
  CHECK(fake_cuda::nccl_counts().aborted == aborted + 1);
  CHECK(fake_cuda::nccl_counts().in_progress == asked);  // no call has said so
  CHECK(conformance::missing(error_of([&] { comm->all_reduce(x); }), {"ready within 100 ms"}) == "");
}

TEST_CASE("NCCL: a call that blocks is ended when the communicator is aborted") {
  const auto comm = alone({.timeout = conformance::kPatience, .blocking = true});
  const Tensor x = ones_on(*comm);
  synchronize(comm->device());
  fake_cuda::stall_nccl(native_ordinal(comm->device()));
  std::thread other([&] {
    std::this_thread::sleep_for(Milliseconds(20));
    comm->abort("no more of it");
  });
  const std::string text = error_of([&] { comm->all_reduce(x); });
  other.join();
  fake_cuda::heal_nccl();
  CHECK(conformance::missing(text, {"rank 0", "no more of it"}) == "");
}

TEST_CASE("NCCL: a communicator that blocks while it is made is given up at its time-out, and goes when NCCL returns") {
  (void)alone({});  // the device has all that it needs
  const auto open = [] {
    return fake_cuda::nccl_counts().made - fake_cuda::nccl_counts().aborted - fake_cuda::nccl_counts().destroyed;
  };
  REQUIRE(becomes([&] { return open() == 0; }));
  fake_cuda::stall_nccl(native_ordinal(first_devices(1)[0]));
  const std::string text = error_of([&] { (void)alone({.timeout = Milliseconds(200), .blocking = true}); });
  CHECK(conformance::missing(text, {"[make_nccl_communicator] rank 0", "ready within 200 ms"}) == "");
  CHECK(open() == 1);
  fake_cuda::heal_nccl();
  CHECK(becomes([&] { return open() == 0; }));
}
#endif
