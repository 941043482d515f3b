// A plug-in with Lockstep inside, as an extension of an interpreter or a server's module is one: three functions of C,
// and nothing else that others see.
#include <cstdio>
#include <exception>

#include "lockstep/lockstep.h"
#include "lockstep/version.h"

#define PLUGIN_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" const int plugin_factor;  // of factor.c

namespace {

using namespace lockstep;

struct Net : Module<Net> {
  Linear first{4, 8}, second{8, 2};
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

double step(double lr) {
  set_log_level(LogLevel::error);  // the devices are unequal
  manual_seed(7);
  auto net = DataParallel(Net{}, {.devices = {Device::host(0), Device::cpu()}});
  SGD optimizer(net.parameters(), {.lr = lr});
  mean(square(net(ones({6, 4})))).backward();
  optimizer.step();
  return mean(square(net(ones({6, 4})))).item<double>() * plugin_factor;
}

}  // namespace

// Trains a step on two devices. The loss after it, times the plug-in's factor; negative when something was thrown.
PLUGIN_EXPORT double plugin_step(double lr) {
  try {
    return step(lr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plug-in: %s\n", error.what());
    return -1;
  }
}

// Uses a device, and leaves nothing in the calling thread.
PLUGIN_EXPORT float plugin_touch() { return ones({4}, {.device = Device::host(0)}).to_vector<float>()[0]; }

// 1 when an exception of the library arrives with its type.
PLUGIN_EXPORT int plugin_catches() {
  try {
    (void)parse_devices("host:1000");
  } catch (const InvalidArgument&) {
    return 1;
  } catch (...) {
  }
  return 0;
}
