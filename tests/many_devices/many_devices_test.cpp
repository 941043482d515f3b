// DataParallel over more devices than fit into a word, and over all that there can be. The environment asks for them:
// LOCKSTEP_HOST_DEVICES=256.
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace support {

DeviceType device_type() { return DeviceType::host; }

}  // namespace support

namespace {

// Whole numbers, of which every sum is exact.
Tensor whole(const Shape& shape, int modulus) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(i % static_cast<std::size_t>(modulus));
  return from_data(values, shape);
}

struct Net : Module<Net> {
  Parameter weight{whole({3, 5}, 7)}, bias{whole({5}, 3)};
  Buffer scale{whole({5}, 4)};
  void members(Members& m) override { m("weight", weight), m("bias", bias), m("scale", scale); }
  Tensor forward(const Tensor& x) const {
    const Device device = x.device();
    return (matmul(x, weight.on(device)) + bias.on(device)) * scale.on(device);
  }
};

void trains_as_one_device_does(std::size_t count) {
  CAPTURE(count);
  const std::vector<Device> devices = support::first_devices(count);
  Net plain;
  plain.to(devices[0]);
  DataParallel net(Net{}, {.devices = devices});
  for (int step = 0; step < 2; ++step) {
    const Tensor x = whole({static_cast<std::int64_t>(2 * count), 3}, 5 + step).to(devices[0]);
    plain.zero_grad();
    net.zero_grad();
    const Tensor expected = plain(x), found = net(x);
    CHECK(equal(found, expected));
    CHECK(net.stats().last.scatter.bytes == (2 * count - 2) * 3 * 8);  // two samples for each of the others
    expected.sum().backward();
    found.sum().backward();
    CHECK(equal(net.module().weight.grad(), plain.weight.grad()));
    CHECK(equal(net.module().bias.grad(), plain.bias.grad()));
    const NoGrad off;
    for (Parameter* parameter : {&plain.weight, &plain.bias, &net.module().weight, &net.module().bias})
      parameter->tensor().sub_(parameter->grad());
  }
}

}  // namespace

TEST_CASE("there are as many devices as were asked for") {
  CHECK(all_devices().size() == 1 + kMaxDevices);
  CHECK(ordinal(Device::host(255)) == 256);
  CHECK_THROWS_AS(ordinal(Device::host(256)), InvalidArgument);
}

TEST_CASE("DataParallel over 70 and over 256 devices computes what one device does") {
  trains_as_one_device_does(70);
  trains_as_one_device_does(256);
}

TEST_CASE("a replicated parameter is on the devices that it is copied to, and on no others") {
  Net net;
  const auto devices = std::vector{Device::host(3), Device::host(250), Device::host(7), Device::host(122)};
  net.to(devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  ParameterBody& body = *net.weight.body();
  for (const Device device : all_devices()) {
    const Slot* const slot = body.slot(ordinal(device));
    const bool wanted = device == devices[1] || device == devices[2] || device == devices[3];
    CHECK((slot != nullptr) == wanted);
    if (slot) CHECK(slot->value.device() == device);
  }
}
