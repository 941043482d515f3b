// Work on more than one stream of a device: what the engine, the slots and copies between devices order by themselves.
// In host mode strict the order checker reports an edge that is missing; in the others these cases check the values.
#include <atomic>
#include <thread>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/engine/engine.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;

namespace {

using Doubles = std::vector<double>;
Device first_device() { return device_at(1); }
Device second_device() { return device_at(2); }

Tensor device_vector(const Doubles& v, Device device = first_device()) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, {.dtype = DType::f64, .device = device});
}
Tensor device_leaf(const Doubles& v, Device device = first_device()) {
  Tensor x = device_vector(v, device);
  x.set_requires_grad();
  return x;
}

// A stream of its own beside the default one, each after what is on the other when it is asked for.
struct Side {
  explicit Side(Device device = first_device()) : stream(device), main(default_stream(device)) {}
  // What `body` gives, computed on the side stream after everything on the main one so far.
  template <class F>
  auto run(F&& body) {
    stream.wait_for(main);
    StreamScope scope(stream);
    return body();
  }
  void join() { main.wait_for(stream); }
  Stream stream;
  Stream main;
};

// Reports of what was released too early come with the next operation.
void nothing_to_report(Device device = first_device()) {
  CHECK_NOTHROW(device_vector({0}, device).fill_(1));
  CHECK_NOTHROW(synchronize(device));
}

struct Pair : Module<Pair> {
  Parameter a{device_vector({1, 2, 3}, Device::cpu())}, b{device_vector({4}, Device::cpu())};
  void members(Members& m) override { m("a", a), m("b", b); }
};

}  // namespace

TEST_CASE("streams evaluate one batch norm at once, which only reads its statistics") {
  BatchNorm1d norm(2);
  norm.to(first_device());
  norm.eval();
  const Tensor x = randn({2, 2}).to(first_device());
  const NoGrad no_grad;
  Side side;
  const Tensor before = side.run([&] { return norm(x); });  // both have seen all that came before
  const Tensor a = norm(x);
  Tensor b;
  {
    const StreamScope scope(side.stream);
    b = norm(x);
  }
  nothing_to_report();
  CHECK(a.to_vector<double>() == b.to_vector<double>());
  side.join();
}

// ---- backward

TEST_CASE("a node runs on its forward's stream, after what made its gradient, and what follows runs after it") {
  for (int round = 0; round < 3; ++round) {
    Side side;
    Tensor x = device_leaf({1, 2});
    Tensor h = side.run([&] { return x * x; });
    std::vector<Stream> seen;
    h.register_hook([&](Tensor&) { seen.push_back(current_stream(first_device())); });
    side.join();
    // Two gradients for h, made on the main stream, that must be added up on the side.
    Tensor y = (h * 3.0 + h * 4.0).sum();
    y.backward();
    CHECK(seen == std::vector<Stream>{side.stream});
    CHECK(x.grad().to_vector<double>() == Doubles{14, 28});
    side.main.wait_for(side.stream);
    h = y = Tensor();
    nothing_to_report();
  }
}

TEST_CASE("nodes on several streams and devices run each on its forward's stream") {
  for (int round = 0; round < 3; ++round) {
    Side side, other(second_device());
    Tensor x = device_leaf({1, 2});
    Tensor h = side.run([&] { return x * x; });
    side.join();
    Tensor far = h.to(second_device());
    Tensor g = other.run([&] { return far * far; });
    other.join();
    std::vector<Stream> seen(2);
    h.register_hook([&](Tensor&) { seen[0] = current_stream(first_device()); });
    g.register_hook([&](Tensor&) { seen[1] = current_stream(second_device()); });
    Tensor y = (g * 3.0 + g * 4.0).to(first_device()).sum() + h.sum();
    y.backward();
    CHECK(seen == std::vector<Stream>{side.stream, other.stream});
    CHECK(x.grad().to_vector<double>() == Doubles{14 * 2 * 1 + 2, 14 * 2 * 8 + 4});
    side.join(), other.join();
    h = g = far = y = Tensor();
    nothing_to_report();
    nothing_to_report(second_device());
  }
}

TEST_CASE("rows go to their leaf after what made them, and what asks for them comes before they go") {
  for (int round = 0; round < 3; ++round) {
    Side side;
    Tensor weight = from_data(Doubles{1, 2, 3}, {3, 1}, {.dtype = DType::f64, .device = first_device()});
    weight.set_requires_grad();
    const Tensor at = from_data(std::vector<std::int64_t>{2, 0, 2}, {3}, {.device = first_device()});
    const auto use = [&] { return square(embedding(weight, at, {.sparse = true})).sum(); };
    Tensor y = side.run(use);
    side.join();
    y.backward();
    // Joined on the leaf's stream, read on another one, gone.
    Tensor dense = side.run([&] {
      Tensor read = weight.sparse_grad().to_dense() + weight.sparse_grad().coalesce().to_dense();
      weight.zero_grad();
      return read;
    });
    device_vector({9, 9, 9}).fill_(7);  // takes the memory
    side.join();
    CHECK(dense.to_vector<double>() == Doubles{4, 0, 24});
    y = dense = Tensor();
    nothing_to_report();
  }
}

TEST_CASE("a checkpointed function runs again on the streams of its forward") {
  for (int round = 0; round < 3; ++round) {
    Side side;
    Tensor x = device_leaf({1, 2});
    std::vector<Stream> seen;
    Tensor y = checkpoint(
        [&](const Tensor& in) {
          seen.push_back(current_stream(first_device()));
          const Tensor h = in * in;
          h.storage()->record_use(side.stream);
          return side.run([&] { return h * h; });
        },
        x);
    side.join();
    y.sum().backward();  // the first node that asks is on the side
    CHECK(seen == std::vector<Stream>(2, side.main));
    CHECK(x.grad().to_vector<double>() == Doubles{4, 32});
    side.join();
    y = Tensor();
    nothing_to_report();
  }
}

TEST_CASE("after a backward the caller's streams come after every stream of the graph") {
  Side side;
  Tensor x;
  Tensor y = side.run([&] {
    x = device_leaf({1, 2, 3});
    return (x * x).sum();
  });
  y.backward();  // the gradient is made on the side
  CHECK((x.grad() * 2.0).to_vector<double>() == Doubles{4, 8, 12});
  side.stream.wait_for(side.main);
  x = y = Tensor();
  nothing_to_report();
}

TEST_CASE("a leaf that is given other elements gets its gradient on their stream") {
  Side side;
  Tensor x = device_leaf({1});
  side.run([&] {
    x.set_data(device_vector({1, 2}));
    return 0;
  });
  std::vector<Stream> seen;
  x.register_hook([&](Tensor&) { seen.push_back(current_stream(first_device())); });
  side.join();
  (x * 3.0).sum().backward();
  CHECK(seen == std::vector<Stream>{side.stream});
  CHECK(x.grad().to_vector<double>() == Doubles{3, 3});
  side.stream.wait_for(side.main);
}

// ---- slots

TEST_CASE("readers of a slot wait for its refresh, and a refresh for its readers, on any stream") {
  NoGrad no_grad;
  Pair net;
  net.to(device_at(0));
  ModuleSlots slots(net);
  const std::vector<Device> devices{device_at(0), first_device()};
  Side side, late;
  for (int round = 1; round <= 5; ++round) {
    net.a.tensor().fill_(round);
    net.b.tensor().fill_(10 * round);
    slots.refresh(devices);
    // Nothing but the slots orders these streams with the refresh.
    Tensor sum, product;
    {
      StreamScope scope(side.stream);
      sum = net.a.on(first_device()) + net.b.on(first_device());
    }
    {
      StreamScope scope(late.stream);
      product = net.a.on(first_device()) * net.b.on(first_device());
    }
    net.a.tensor().fill_(-1);
    slots.refresh(devices);
    side.join(), late.join();
    CHECK(sum.to_vector<double>() == Doubles(3, 11.0 * round));
    CHECK(product.to_vector<double>() == Doubles(3, 10.0 * round * round));
    side.stream.wait_for(side.main), late.stream.wait_for(late.main);
  }
}

TEST_CASE("whoever's refresh failed is told, also when others have seen the error and gone on") {
  if (default_stream(first_device()).synchronous()) return;
  NoGrad no_grad;
  Pair net;
  net.to(device_at(0));
  ModuleSlots slots(net);
  const std::vector<Device> devices{device_at(0), first_device()};
  slots.refresh(devices);
  net.b.tensor().fill_(7);
  for (const Device device : devices) synchronize(device);
  detail::host_faults().throw_in_task(1);
  slots.refresh(devices);
  const Event& ready = net.b.body()->slot(ordinal(first_device()))->refresh->piece(0);
  while (ready.progress() == Event::Progress::pending) std::this_thread::yield();
  int seen = 0;
  std::thread([&] {
    // This one's error, and one of its own after it.
    const Stream copies = copy_stream(first_device());
    for (int i = 0; i < 2; ++i) {
      try {
        synchronize(copies);
      } catch (const DeviceError&) {
        ++seen;
      }
      if (i > 0) break;
      detail::host_faults().throw_in_task(1);
      copies.enqueue([] {});
    }
  }).join();
  detail::host_faults().clear();
  CHECK(seen == 2);
  Side side, home(device_at(0));  // where nothing has failed
  {
    StreamScope here(side.stream), there(home.stream);
    slots.refresh(devices);
    const auto read = [&] {
      const Tensor b = net.b.on(first_device());
      synchronize(side.stream);
    };
    CHECK_THROWS_AS(read(), DeviceError);
  }
  for (int i = 0; i < 3; ++i) {
    try {
      for (const Device device : devices) synchronize(device);
    } catch (const DeviceError&) {
    }
  }
  slots.refresh(devices);
  CHECK(net.b.on(first_device()).to_vector<double>() == Doubles{7});
}

TEST_CASE("a parameter that moves while it is frozen gets its gradient where it is then") {
  Pair net;
  net.to(device_at(0));
  net.b.set_requires_grad(false);
  net.to(first_device());
  net.b.set_requires_grad(true);
  ModuleSlots(net).refresh(std::vector<Device>{first_device(), second_device()});
  Tensor w = net.b.on(second_device());
  const Tensor gradient = grad((w * w).to(first_device()), {net.b.tensor()})[0];
  CHECK(gradient.device() == first_device());
  CHECK(gradient.to_vector<double>() == Doubles{8});
}

TEST_CASE("a reader enters when the refresh that is going on is over") {
  ReadGate gate;
  ReadGate* const gates[] = {&gate};
  REQUIRE(ReadGate::close(gates, Deadline::after(Milliseconds(60'000))));
  std::atomic<bool> entered{false};
  std::thread reader([&] {
    gate.enter();
    entered = true;
    gate.leave();
  });
  // However long that is; a reader that does not wait is seen at once.
  for (int i = 0; i < 20 && !entered; ++i) std::this_thread::sleep_for(Milliseconds(1));
  CHECK_FALSE(entered);
  ReadGate::open(gates);
  reader.join();
  CHECK(entered);
}

// ---- copies between devices

TEST_CASE("a tensor may go while a copy of it, made on another stream, is on its way") {
  Side side;
  for (int round = 0; round < 10; ++round) {
    Tensor x = device_vector({1, 2, 3}).mul_(2);
    Tensor y = side.run([&] { return x.to(second_device()); });
    x = Tensor();
    CHECK_NOTHROW(y.add_(1));
    CHECK(y.to_vector<double>() == Doubles{3, 5, 7});
  }
  nothing_to_report();
}

TEST_CASE("both sides of a copy into place may go while it is on its way") {
  Side from, to(second_device());
  for (int round = 0; round < 10; ++round) {
    Tensor x = device_vector({1, 2, 3}), y = zeros({3}, {.dtype = DType::f64, .device = second_device()});
    from.stream.wait_for(from.main);
    to.stream.wait_for(to.main);
    {
      StreamScope here(from.stream), there(to.stream);
      y.copy_(x);
    }
    if (round % 2 == 0) {
      x = Tensor();
      CHECK_NOTHROW(device_vector({0}, second_device()));
    }
    y = Tensor();
    CHECK_NOTHROW(device_vector({0}));
  }
  nothing_to_report();
  nothing_to_report(second_device());
}
