// How many calls of the CUDA runtime the engine makes for a module of many parameters: what they cost is the host's
// time.
#include <string>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

constexpr int kParameters = 1000;

struct Many : Module<Many> {
  std::vector<Parameter> all;
  Many() {
    for (int i = 0; i < kParameters; ++i) all.emplace_back(ones({3}));
  }
  void members(Members& m) override { m("all", all); }
};

int event_calls() {
  int calls = 0;
  for (const char* name : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery", "cudaEventSynchronize"})
    calls += fake_cuda::calls_of(name);
  return calls;
}
int kernel_calls() { return fake_cuda::calls_of("cudaLaunchKernel"); }
int copy_calls() { return fake_cuda::calls_of("cudaMemcpyAsync") + fake_cuda::calls_of("cudaMemcpyPeerAsync"); }

std::vector<Device> eight_devices() {
  support::needs_devices(8);
  return support::first_devices(8);
}

}  // namespace

TEST_CASE("the calls that a refresh makes do not grow with the parameters, nor those of reading them") {
  const std::vector<Device> devices = eight_devices();
  Many net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  for (const Device device : devices) synchronize(device);
  for (int step = 0; step < 3; ++step) {
    for (const Parameter& parameter : net.all) parameter.tensor().mark_changed();
    const int events = event_calls(), copies = copy_calls(), switches = fake_cuda::calls_of("cudaSetDevice");
    slots.refresh(devices);
    CHECK(copy_calls() - copies == 7 * 1);  // one piece
    CHECK(event_calls() - events <= 7 * 8);
    CHECK(fake_cuda::calls_of("cudaSetDevice") - switches <= 7 + 3);  // once a copy
    // The reader waits for each piece, once.
    const NoGrad off;
    for (const int waits : {7 * 1, 0}) {
      const int before_reads = event_calls();
      for (const Device device : devices)
        for (const Parameter& parameter : net.all) (void)parameter.on(device);
      CHECK(event_calls() - before_reads == waits);
    }
    // So does home, when it is about to write, for the one device that it sends to.
    for (const int waits : {1, 0}) {
      const int before_writes = event_calls();
      for (const Parameter& parameter : net.all) (void)parameter.tensor().in_out();
      CHECK(event_calls() - before_writes == waits);
    }
  }
}

TEST_CASE("gradients come home in one sum, without a copy or a kernel per parameter there") {
  const std::vector<Device> devices = eight_devices();
  Many net;
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  struct Calls {
    int copies, kernels, events, switches;
  };
  const auto backward = [&] {
    Tensor total;
    for (const Device device : devices) {
      Tensor there;
      for (const Parameter& parameter : net.all) {
        const Tensor part = parameter.on(device).sum();
        there = there.defined() ? there + part : part;
      }
      total = total.defined() ? total + there.to(devices[0]) : there.to(devices[0]);
    }
    const Calls before{copy_calls(), kernel_calls(), event_calls(), fake_cuda::calls_of("cudaSetDevice")};
    total.backward();
    return Calls{copy_calls() - before.copies, kernel_calls() - before.kernels, event_calls() - before.events,
                 fake_cuda::calls_of("cudaSetDevice") - before.switches};
  };
  const auto grad = [&] { return net.all.back().grad().to_vector<float>(); };
  backward();
  net.zero_grad();
  const Calls first = backward();
  CHECK(grad() == std::vector<float>(3, 8));
  CHECK(first.copies <= 7 * 3);  // the losses' gradients go out, and one sum comes back
  // A parameter's gradient is a kernel of the backward; those that store and sum them are a few per device.
  CHECK(first.kernels <= 8 * (kParameters + 10));
  CHECK(first.events <= 8 * 16);
  CHECK(first.switches <= 8 * 16);
  // On top of gradients that are there each parameter takes an addition, where otherwise the sum is the gradients.
  const Calls second = backward();
  CHECK(grad() == std::vector<float>(3, 16));
  CHECK(second.kernels - first.kernels >= kParameters);
}
