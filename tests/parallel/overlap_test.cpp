// Scatter overlaps with computing. A link can be slowed as much as one likes: here a copy takes until the test has seen
// enough, and the order of the trace says what happened meanwhile.
#include <algorithm>
#include <thread>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/trace/trace.h"
#include "parallel/support.h"

using namespace parallel_test;
using lockstep::detail::host_faults;

namespace {

bool a_copy_hangs() {
  for (int device = 0; device < 8; ++device) {
    if (host_faults().struck(device)) return true;
  }
  return false;
}

// Waits until `reached`, or gives up: then the test fails on what the trace says.
template <class Condition>
bool wait_until(Condition reached) {
  const Deadline deadline = Deadline::after(Milliseconds(20'000));
  while (!reached() && !deadline.passed()) std::this_thread::yield();
  return reached();
}

// A kernel that has run to its end, on any device or on that one.
const trace::Span* finished_kernel(const std::vector<trace::Span>& spans, std::optional<Device> device = {}) {
  const auto found = std::find_if(spans.begin(), spans.end(), [&](const trace::Span& span) {
    return span.work.kind == trace::Kind::kernel && span.ended > 0 && (!device || span.device == *device);
  });
  return found == spans.end() ? nullptr : &*found;
}

// A call whose first copy does not end before a kernel has.
struct Overlap {
  std::vector<trace::Span> spans;
  Doubles result;
  bool kernel_came_first = false;

  Overlap(const std::vector<Device>& devices, Device source) {
    const auto net = DataParallel(Calling([](const Tensor& x, const Tensor& weight) {
                                    // No kernel can be what hangs.
                                    if (trace::active()) wait_until(a_copy_hangs);
                                    return x * weight;
                                  }),
                                  {.devices = devices});
    const Tensor x = counting({6, 2}, source);
    net(x);  // fills the mirrors, looks at the links
    for (const Device device : all_devices()) synchronize(device);
    host_faults().clear();
    host_faults().hang_task(1);
    trace::start();
    std::thread watch([this] {
      kernel_came_first = wait_until([] { return finished_kernel(trace::spans()) != nullptr; });
      host_faults().release();
    });
    const Tensor y = net(x);
    watch.join();
    host_faults().clear();
    result = values(y);
    trace::stop();
    spans = trace::spans();
  }
  // Copies from `source` into `device`.
  const trace::Span* copy(Device source, Device device) const {
    const auto found = std::find_if(spans.begin(), spans.end(), [&](const trace::Span& span) {
      return span.work.kind == trace::Kind::copy && span.work.source == source && span.device == device;
    });
    return found == spans.end() ? nullptr : &*found;
  }
};

// From when on a copy is under way. On CUDA devices a host function says so, and may itself be what hangs.
std::uint64_t under_way(const trace::Span& copy) {
  return support::device_type() == DeviceType::cuda ? copy.enqueued : copy.began;
}

const Doubles kProducts{1, 4, 3, 8, 5, 12, 7, 16, 9, 20, 11, 24};

bool asynchronous() { return !default_stream(device_at(0)).synchronous(); }

}  // namespace

TEST_CASE("the first replica computes while the next piece is on its way") {
  support::needs_devices(4);
  if (!asynchronous()) return;
  for (const auto& devices : {first_devices(2), devices_at({3, 1})}) {
    const Overlap run(devices, devices[0]);
    CHECK(run.kernel_came_first);
    CHECK(run.result == kProducts);
    const trace::Span* copy = run.copy(devices[0], devices[1]);
    const trace::Span* kernel = finished_kernel(run.spans, devices[0]);
    REQUIRE(copy != nullptr);
    REQUIRE(kernel != nullptr);
    CHECK(under_way(*copy) < kernel->began);
    CHECK(kernel->ended < copy->ended);
  }
}

TEST_CASE("pieces from plain memory arrive side by side, and whoever has one computes") {
  if (!asynchronous()) return;
  const Overlap run(first_devices(3), Device::cpu());
  CHECK(run.kernel_came_first);
  CHECK(run.result == kProducts);
  int overlapped = 0;
  for (const Device device : first_devices(3)) {
    const trace::Span* copy = run.copy(Device::cpu(), device);
    REQUIRE(copy != nullptr);
    for (const trace::Span& kernel : run.spans) {
      overlapped += kernel.work.kind == trace::Kind::kernel && kernel.device != device &&
                    under_way(*copy) < kernel.began && kernel.ended < copy->ended;
    }
  }
  CHECK(overlapped > 0);
}

TEST_CASE("the batch may be written when the call has returned") {
  support::needs_devices(6);
  for (const Device source : {Device::cpu(), device_at(0), device_at(5)}) {
    const auto net = DataParallel(Scale({1, 2}), {.devices = first_devices(3)});
    for (int round = 0; round < 20; ++round) {
      const NoGrad off;
      Tensor x = counting({6, 2}, source);
      const Tensor y = net(x);
      x.fill_(-1);
      x = Tensor();
      CHECK(values(y) == kProducts);
    }
  }
}

TEST_CASE("a replica that fails leaves no copy without an edge") {
  support::needs_devices(3);
  for (const Device source : {Device::cpu(), device_at(0)}) {
    const auto net = DataParallel(Calling([](const Tensor& x, const Tensor& weight) -> Tensor {
                                    if (x.device() == device_at(0)) throw std::runtime_error("no");
                                    return x * weight;
                                  }),
                                  {.devices = first_devices(3)});
    for (int round = 0; round < 20; ++round) {
      const NoGrad off;
      Tensor x = counting({6, 2}, source);
      CHECK_THROWS_AS(net(x), ReplicaError);
      x.fill_(-1);
    }
  }
}
