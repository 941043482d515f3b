// DataParallel whose parameters and gradients go through NCCL, in one process.
#if __has_include(<nccl.h>)
#include <set>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::first_devices;

namespace {

constexpr int kNcclSystemError = 2;

std::vector<Device> gpus(int count) {
  const std::vector<Device> devices = first_devices(count);
  std::set<int> found;
  for (const Device device : devices) found.insert(native_ordinal(device));
  if (found.size() < devices.size()) support::skip(cat(count, " GPUs expected, ", found.size(), " found"));
  return devices;
}

// Whole numbers, of which every sum is exact whatever its order.
Tensor whole(const Shape& shape, int modulus) {
  std::vector<float> values(static_cast<std::size_t>(element_count(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % static_cast<std::size_t>(modulus));
  return from_data(values, shape);
}

struct Net : Module<Net> {
  Parameter weight{whole({257, 1031}, 5)};  // of more than 1 MiB
  Parameter bias{whole({1031}, 3)};
  Buffer scale{whole({1031}, 2)};
  void members(Members& m) override { m("weight", weight), m("bias", bias), m("scale", scale); }
  Tensor forward(const Tensor& x) const {
    const Device device = x.device();
    return (matmul(x, weight.on(device)) + bias.on(device)) * scale.on(device);
  }
};

struct Moved {
  int broadcasts = fake_cuda::calls_of("ncclBroadcast"), reduces = fake_cuda::calls_of("ncclReduce"),
      copies = fake_cuda::calls_of("cudaMemcpyPeerAsync");
  Moved since(const Moved& before) const {
    return {broadcasts - before.broadcasts, reduces - before.reduces, copies - before.copies};
  }
};

Tensor input(const std::vector<Device>& devices, int step, int samples) {
  return whole({samples, 257}, 3 + step).to(devices[0]);
}

template <class Model>
void train_step(Model& model, const Tensor& x) {
  model.zero_grad();
  model(x).sum().backward();
}
template <class Module>
void update(Module& module) {
  const NoGrad off;
  for (Parameter* parameter : {&module.weight, &module.bias}) parameter->tensor().sub_(parameter->grad());
}

}  // namespace

TEST_CASE("DataParallel over NCCL: parameters and large gradients go through it, and training is the same") {
  for (const int count : {2, 3, 4}) {
    CAPTURE(count);
    const std::vector<Device> devices = gpus(count);
    Net plain;
    plain.to(devices[0]);
    DataParallel net(Net{}, {.devices = devices, .transport = Transport::nccl});
    for (int step = 0; step < 3; ++step) {
      CAPTURE(step);
      const Tensor x = input(devices, step, 2 * count);
      train_step(plain, x);
      const Moved before;
      train_step(net, x);
      const Moved moved = Moved().since(before);
      // One range of parameters that lie together; the buffer in the first step alone: nobody has written it since.
      CHECK(moved.broadcasts == count * (step == 0 ? 2 : 1));
      CHECK(moved.reduces == count);  // one sum of both gradients
      CHECK(equal(net.module().weight.grad(), plain.weight.grad()));
      CHECK(equal(net.module().bias.grad(), plain.bias.grad()));
      update(plain);
      update(net.module());
    }
    {
      const NoGrad off;
      net.module().scale.tensor().add_(1);
      plain.scale.tensor().add_(1);
      const Tensor x = input(devices, 1, count);
      CHECK(equal(net(x), plain(x)));  // the changed buffer has reached the mirrors, and the last update
    }
    CHECK(net.stats().last.replicate.bytes == static_cast<std::uint64_t>(count - 1) * (257 * 1031 + 2 * 1031) * 4);
  }
}

TEST_CASE("DataParallel over NCCL: what has not changed is not sent") {
  const std::vector<Device> devices = gpus(2);
  DataParallel net(Net{}, {.devices = devices, .transport = Transport::nccl});
  const NoGrad off;
  const Tensor x = input(devices, 0, 4);
  const Tensor first = net(x);
  const Moved before;
  CHECK(equal(net(x), first));
  CHECK(Moved().since(before).broadcasts == 0);
  net.module().bias.tensor().add_(1);
  (void)net(x);
  CHECK(Moved().since(before).broadcasts == 2);
}

TEST_CASE("DataParallel over NCCL: a batch of fewer pieces than devices goes by copies") {
  const std::vector<Device> devices = gpus(3);
  Net plain;
  plain.to(devices[0]);
  DataParallel net(Net{}, {.devices = devices, .transport = Transport::nccl});
  const Tensor x = input(devices, 0, 2);
  train_step(plain, x);
  const Moved before;
  train_step(net, x);
  const Moved moved = Moved().since(before);
  CHECK(moved.broadcasts == 0);
  CHECK(moved.reduces == 0);
  CHECK(equal(net.module().weight.grad(), plain.weight.grad()));
  update(plain);
  update(net.module());
  const Tensor more = input(devices, 1, 6);  // all of them, of which two have old elements and one has none
  train_step(plain, more);
  train_step(net, more);
  CHECK(equal(net.module().weight.grad(), plain.weight.grad()));
}

TEST_CASE("DataParallel over NCCL: who wraps the module anew without it gets sums in replica order") {
  const std::vector<Device> devices = gpus(2);
  DataParallel net(Net{}, {.devices = devices, .transport = Transport::nccl});
  const Tensor x = input(devices, 0, 4);
  train_step(net, x);
  DataParallel copies(net.module(), {.devices = devices});
  const Moved before;
  train_step(copies, x);
  CHECK(Moved().since(before).reduces == 0);
  train_step(net, x);
  CHECK(Moved().since(before).reduces == 2);
}

TEST_CASE("DataParallel over NCCL: a failure is thrown, and the next call begins anew") {
  const std::vector<Device> devices = gpus(2);
  DataParallel net(Net{}, {.devices = devices, .transport = Transport::nccl});
  const Tensor x = input(devices, 0, 4);
  const NoGrad off;
  const Tensor first = net(x);
  net.module().bias.tensor().add_(1);
  fake_cuda::fail_nccl(1, kNcclSystemError);
  bool told = false;
  try {
    (void)net(x);
    for (const Device device : devices) synchronize(device);
  } catch (const CommError& error) {
    told = true;
    INFO(error.what());
  }
  fake_cuda::heal_nccl();
  CHECK(told);
  Net plain;
  plain.to(devices[0]);
  plain.bias.tensor().add_(1);
  CHECK(equal(net(x), plain(x)));
}

TEST_CASE("DataParallel over NCCL: one device needs none, and devices that share a GPU cannot have it") {
  const std::vector<Device> devices = gpus(2);
  const int made = fake_cuda::nccl_counts().made;
  DataParallel alone(Net{}, {.devices = {devices[0]}, .transport = Transport::nccl});
  CHECK(fake_cuda::nccl_counts().made == made);
  const std::vector<Device> all = accelerators();
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (native_ordinal(all[i]) != native_ordinal(all[0])) continue;
    CHECK_THROWS_AS(DataParallel(Net{}, {.devices = {all[0], all[i]}, .transport = Transport::nccl}), InvalidArgument);
    break;
  }
}
#endif
