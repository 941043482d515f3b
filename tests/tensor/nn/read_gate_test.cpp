// Readers of parameters and those who replace them: who waits for whom.
#include "lockstep/tensor/nn/read_gate.h"

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;

namespace {

Deadline far_off() { return Deadline::after(Milliseconds(60'000)); }

// Whether it stays so for a while; what does not wait shows at once.
template <class Condition>
bool stays(Condition condition) {
  for (int i = 0; i < 20; ++i) {
    if (!condition()) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}
template <class Condition>
void until(Condition condition) {
  for (const Deadline deadline = far_off(); !condition() && !deadline.passed();) std::this_thread::yield();
}

// How long a reader lets a writer wait that is not let in.
struct Patience {
  explicit Patience(int milliseconds) { ReadGate::set_patience(Milliseconds(milliseconds)); }
  ~Patience() { ReadGate::set_patience(ReadGate::kPatience); }
};

struct GatedNet : Module<GatedNet> {
  Parameter a{full({3}, 1, {.dtype = DType::f64}), false}, b{full({3}, 1, {.dtype = DType::f64}), false};
  std::function<void()> between = [] {};
  Tensor forward(const Tensor& x) const {
    const Tensor y = x * a.on(x.device());
    between();
    return cat({y, x * b.on(x.device())});
  }
  void members(Members& m) override { m("a", a), m("b", b); }
};
std::vector<NamedTensor> state_of(double value, Device device = Device::cpu()) {
  const TensorOptions options{.dtype = DType::f64, .device = device};
  return {{"a", full({3}, value, options)}, {"b", full({3}, value, options)}};
}
std::vector<double> all(double value) { return std::vector<double>(6, value); }

}  // namespace

TEST_CASE("a reader that comes while a writer waits goes behind it, and before the next one") {
  const Patience patience(600'000);
  ReadGate gate;
  ReadGate* const gates[] = {&gate};
  std::atomic<int> written{0};
  std::atomic<bool> entered{false};
  gate.enter();
  std::thread writer([&] {
    ReadGate::close(gates, far_off());
    ++written;
    ReadGate::open(gates);
  });
  until([&] { return gate.wanted(); });
  int seen = -1;
  std::thread reader([&] {
    gate.enter();
    seen = written;
    entered = true;
    gate.leave();
  });
  CHECK(stays([&] { return !entered; }));
  CHECK(written == 0);
  gate.enter(true);  // who is inside already may enter again
  gate.leave();
  gate.leave();
  writer.join();
  reader.join();
  CHECK(seen == 1);
}

TEST_CASE("writers of several gates close all of them or none") {
  ReadGate first, second;
  ReadGate* const both[] = {&first, &second};
  second.enter();
  CHECK_FALSE(ReadGate::close(both, Deadline::after(Milliseconds(1))));
  first.enter();  // not kept
  first.leave();
  second.leave();
  CHECK(ReadGate::close(both, far_off()));
  ReadGate* const one[] = {&second};
  CHECK_FALSE(ReadGate::close(one, Deadline::after(Milliseconds(1))));
  ReadGate::open(both);
  second.enter();
  second.leave();

  // In either order, with readers: nobody waits for ever.
  ReadGate* const turned[] = {&second, &first};
  std::array<int, 2> value{};
  std::atomic<bool> torn{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 300; ++round) {
        ReadGate::close(i == 0 ? both : turned, far_off());
        ++value[0], ++value[1];
        ReadGate::open(both);
      }
    });
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        first.enter();
        const int seen = value[0];
        second.enter(true);
        if (value[1] != seen) torn = true;
        second.leave();
        first.leave();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(torn);
  CHECK(value[0] == 600);
}

TEST_CASE("new elements are put in place between two calls, whoever makes them") {
  GatedNet net;
  std::atomic<bool> inside{false}, loaded{false};
  net.between = [&] {
    inside = true;
    CHECK(stays([&] { return !loaded; }));
  };
  std::thread loader([&] {
    until([&] { return inside.load(); });
    net.load_state_dict(state_of(2));
    loaded = true;
  });
  const Tensor x = ones({3}, {.dtype = DType::f64});
  const std::vector<double> before = net(x).to_vector<double>();
  loader.join();
  net.between = [] {};
  CHECK(before == all(1));
  CHECK(net(x).to_vector<double>() == all(2));

  // The same of one parameter, and of copies that share them.
  const GatedNet copy = net;
  copy.a.assign(full({3}, 3, {.dtype = DType::f64}));
  CHECK(net(x).to_vector<double>()[0] == 3);
}

TEST_CASE("loading into a module from inside its own call is an error, and changes nothing") {
  GatedNet net;
  GatedNet other;
  net.between = [&] { net.load_state_dict(state_of(2)); };
  const Tensor x = ones({3}, {.dtype = DType::f64});
  CHECK_THROWS_WITH(net(x), Contains("[load_state_dict] expected a call from outside of the module's calls"));
  net.between = [&] { other.load_state_dict(state_of(5)); };  // of another module it is none
  CHECK(net(x).to_vector<double>() == all(1));
  net.between = [] {};
  CHECK(other(x).to_vector<double>() == all(5));
  net.between = [&] { net.b.assign(full({3}, 4, {.dtype = DType::f64})); };  // one at a time, as in place
  CHECK(net(x).to_vector<double>()[5] == 4);
}

TEST_CASE("a call may have threads of its own read its parameters, also while a load waits for it") {
  const Patience patience(20);
  GatedNet net;
  const Tensor x = ones({3}, {.dtype = DType::f64});
  CHECK(net(x).to_vector<double>() == all(1));  // now it has a gate
  const ReadGate& gate = **net.a.body()->gate();
  std::thread loader;
  std::vector<double> seen;
  bool inside = false;
  net.between = [&] {
    if (std::exchange(inside, true)) return;
    loader = std::thread([&] { net.load_state_dict(state_of(2)); });
    until([&] { return gate.wanted(); });
    std::thread helper([&] { seen = net(x).to_vector<double>(); });
    helper.join();
  };
  CHECK(net(x).to_vector<double>() == all(1));
  CHECK(seen == all(1));
  loader.join();
  net.between = [] {};
  CHECK(net(x).to_vector<double>() == all(2));
}

TEST_CASE("the first elements of a parameter come before what is read after them, as others do") {
  const Device device = device_at(1);
  struct Late : Module<Late> {
    Parameter w = Parameter::uninitialized({64, 64}, DType::f64);
    Tensor forward(const Tensor& x) const { return matmul(x, w.on(x.device())); }
    void members(Members& m) override { m("w", w); }
  };
  Late net;
  net.to(device);
  Stream loads(device), serves(device);
  const Tensor x = ones({2, 64}, {.dtype = DType::f64, .device = device});
  synchronize(device);
  {
    const StreamScope scope(loads);
    net.load_state_dict({{"w", full({64, 64}, 2, {.dtype = DType::f64, .device = device})}});
  }
  const StreamScope scope(serves);
  const NoGrad no_grad;
  CHECK(net(x).to_vector<double>() == std::vector<double>(128, 128));
}

TEST_CASE("a load comes after what was read on other streams, and before what is read after it") {
  const Device device = device_at(1);
  GatedNet net;
  net.to(device);
  const Tensor x = ones({3}, {.dtype = DType::f64, .device = device});
  synchronize(device);
  Stream first(device), second(device), third(device), fourth(device);
  std::vector<Tensor> seen;
  for (int version = 2; version < 6; ++version) {
    {
      const StreamScope scope(version % 2 == 0 ? first : second);
      seen.push_back(net(x));
    }
    const StreamScope scope(version < 4 ? third : default_stream(device));
    // From where they are to go: copies from plain memory are waited for by the host.
    net.load_state_dict(state_of(version - 10, device));
    const StreamScope another(fourth);  // with nobody who reads in between
    net.load_state_dict(state_of(version, device));
  }
  {
    const StreamScope scope(first);
    seen.push_back(net(x));
  }
  synchronize(device);
  for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i].to_vector<double>() == all(i == 0 ? 1 : double(i) + 1));
}

TEST_CASE("loads from several threads: one of them, whole") {
  GatedNet net;
  std::vector<std::thread> loaders;
  for (int i = 0; i < 3; ++i)
    loaders.emplace_back([&, i] {
      for (int round = 0; round < 50; ++round) net.load_state_dict(state_of(i));
    });
  for (std::thread& loader : loaders) loader.join();
  const std::vector<double> seen = net(ones({3}, {.dtype = DType::f64})).to_vector<double>();
  CHECK(seen == all(seen[0]));
}

TEST_CASE("what a graph has saved of the elements before a load is void") {
  Linear layer(3, 2);
  const Tensor y = layer(layer.weight.tensor().narrow(0, 0, 1).detach().set_requires_grad(true));
  layer.load_state_dict(layer.state_dict());
  CHECK_THROWS_WITH(y.sum().backward(), Contains("changed in place"));
}
