// replicate: slots on several devices, and the gradients that come back from them.
#include "lockstep/parallel/replicate.h"

#include "lockstep/tensor/nn/layers.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct MixedMembers : Module<MixedMembers> {
  Parameter a{tensor({1, 2, 3}, {3})};
  Parameter frozen{tensor({4, 5}, {2}), false};
  Parameter narrow{tensor({6, 7, 8, 9}, {4}).to(DType::f32)};
  Buffer state{tensor({0, 0}, {2})};
  Buffer learned{tensor({3}, {1}), true};
  Tensor forward(const Tensor& x) const {
    const Device device = x.device();
    return x * a.on(device).sum() * frozen.on(device).sum() * narrow.on(device).sum().to(DType::f64) *
           learned.on(device).sum();
  }
  void members(Members& m) override {
    m("a", a), m("frozen", frozen), m("narrow", narrow), m("state", state), m("learned", learned);
  }
};
constexpr std::uint64_t kBytes = (3 + 2 + 2 + 1) * 8 + 4 * 4;

template <class M>
M on(M module, Device device) {
  module.to(device);
  return module;
}
std::uint64_t bytes_moved(const std::function<void()>& body) {
  const std::uint64_t before = detail::moved_bytes();
  body();
  return detail::moved_bytes() - before;
}

}  // namespace

TEST_CASE("a replica is callable and its parameters are the slots of its device") {
  for (const auto& devices : device_sets()) {
    const MixedMembers net = on(MixedMembers{}, devices[0]);
    const std::vector<Replica<MixedMembers>> replicas = replicate(net, devices);
    REQUIRE(replicas.size() == devices.size());
    for (std::size_t i = 0; i < devices.size(); ++i) {
      CHECK(replicas[i].device() == devices[i]);
      CHECK(replicas[i].index() == static_cast<int>(i));
      const std::vector<Tensor> slots = replicas[i].parameters();
      REQUIRE(slots.size() == 3);  // registration order
      CHECK(values(slots[0]) == Doubles{1, 2, 3});
      CHECK(values(slots[1]) == Doubles{4, 5});
      CHECK(slots[2].dtype() == DType::f32);
      for (const Tensor& slot : slots) CHECK(slot.device() == devices[i]);
      CHECK(replicas[i].buffers().size() == 2);
      CHECK(values(replicas[i](counting({1}, devices[i]))) == Doubles{6.0 * 9 * 30 * 3});
    }
    CHECK(replicas[0].parameters()[0].identity() == net.a.tensor().identity());  // home: the parameter itself
    if (devices.size() > 1) CHECK(replicas[1].parameters()[0].data() != net.a.tensor().data());
  }
}

TEST_CASE("an in-place update at home stays, one elsewhere is lost at the refresh") {
  const MixedMembers net = on(MixedMembers{}, device_at(3));
  const auto devices = devices_at({3, 1});
  const NoGrad off;
  const auto replicas = replicate(net, devices);
  replicas[0].buffers()[0].add_(1);
  replicas[1].buffers()[0].add_(5);
  CHECK(values(net.state.tensor()) == Doubles{1, 1});
  replicate(net, devices);
  CHECK(values(replicas[1].buffers()[0]) == Doubles{1, 1});
}

TEST_CASE("only slots that changed, at home or by themselves, are refreshed") {
  support::needs_devices(8);
  const MixedMembers net = on(MixedMembers{}, device_at(0));
  const auto devices = first_devices(3);
  CHECK(bytes_moved([&] { replicate(net, devices); }) == 2 * kBytes);
  CHECK(bytes_moved([&] { replicate(net, devices); }) == 0);
  const NoGrad off;
  net.a.tensor().add_(1);
  CHECK(bytes_moved([&] { replicate(net, devices); }) == 2 * 3 * 8);
  net.state.on(device_at(2)).fill_(9);
  CHECK(bytes_moved([&] { replicate(net, devices); }) == 2 * 8);
  CHECK(values(net.state.on(device_at(2))) == Doubles{0, 0});
  CHECK(bytes_moved([&] { replicate(net, first_devices(2)); }) == 0);
  CHECK(bytes_moved([&] { replicate(net, devices_at({0, 7})); }) == kBytes);  // a device that has none yet
}

TEST_CASE("tied parameters are mirrored once") {
  struct Tied : Module<Tied> {
    Parameter weight{tensor({1, 2}, {2})};
    Parameter again = weight;
    Tensor forward(const Tensor& x) const { return x * weight.on(x.device()) + again.on(x.device()); }
    void members(Members& m) override { m("weight", weight), m("again", again); }
  };
  const Tied net = on(Tied{}, device_at(1));
  CHECK(bytes_moved([&] { CHECK(replicate(net, devices_at({1, 0}))[1].parameters().size() == 1); }) == 2 * 8);
  const auto replicas = replicate(net, devices_at({1, 0}));
  (replicas[0](tensor({1, 1}, {2}, device_at(1))).sum() +
   replicas[1](tensor({2, 3}, {2}, device_at(0))).sum().to(device_at(1)))
      .backward();
  CHECK(values(net.weight.grad()) == Doubles{2 + 3, 2 + 4});  // two uses in each of two replicas
}

TEST_CASE("gradients of mixed dtypes are added at home; frozen and unused parameters keep an undefined grad") {
  support::needs_devices(3);
  const MixedMembers net = on(MixedMembers{}, device_at(0));
  const Parameter unused(tensor({1}, {1}, device_at(0)));
  const auto replicas = replicate(net, first_devices(3));
  Tensor total;
  for (const auto& replica : replicas) {
    const Tensor part = replica(counting({1}, replica.device(), 1.0 + replica.index())).to(device_at(0)).sum();
    total = total.defined() ? total + part : part;
  }
  total.backward();
  const double x = 1 + 2 + 3;
  CHECK(values(net.a.grad()) == Doubles(3, x * 9 * 30 * 3));
  CHECK(values(net.narrow.grad()) == Doubles(4, x * 6 * 9 * 3));
  CHECK(net.narrow.grad().dtype() == DType::f32);
  CHECK(values(net.learned.grad()) == Doubles{x * 6 * 9 * 30});
  CHECK_FALSE(net.frozen.grad().defined());
  CHECK_FALSE(replicas[1].parameters()[1].requires_grad());
  CHECK(replicas[1].parameters()[0].requires_grad());
  CHECK(replicas[1].buffers()[1].requires_grad());
  CHECK_FALSE(unused.grad().defined());
}

TEST_CASE("without grad mode mirrors have no edge") {
  support::needs_devices(2);
  const MixedMembers net = on(MixedMembers{}, device_at(0));
  const NoGrad off;
  CHECK_FALSE(replicate(net, first_devices(2))[1].parameters()[0].requires_grad());
}

TEST_CASE("misplaced, uninitialised and doubled are errors that say where") {
  support::needs_devices(5);
  MixedMembers net = on(MixedMembers{}, device_at(0));
  CHECK(missing(message_of<InvalidArgument>([&] {
                  replicate(net, devices_at({1, 0}));
                }),
                {"module must have its parameters and buffers on device " + device_name(1) +
                 " (devices[0]) but found 'a' on device " + device_name(0)}) == "");
  struct Outer : Module<Outer> {
    MixedMembers inner;
    Buffer far{tensor({1}, {1}, device_at(4))};
    Tensor forward(const Tensor& x) const { return x; }
    void members(Members& m) override { m("inner", inner), m("far", far); }
  };
  Outer outer;
  outer.inner.to(device_at(0));
  CHECK(missing(message_of<InvalidArgument>([&] { replicate(outer, first_devices(2)); }),
                {device_name(0), "'far'", device_name(4)}) == "");
  struct Lazy : Module<Lazy> {
    Parameter weight = Parameter::uninitialized({2}, DType::f64);
    Tensor forward(const Tensor& x) const { return x; }
    void members(Members& m) override { m("weight", weight); }
  };
  CHECK(missing(message_of<InvalidArgument>([&] { replicate(Lazy{}, first_devices(2)); }),
                {"weight", "uninitialised"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] {
                  replicate(net, devices_at({0, 2, 0}));
                }),
                {device_name(0), "twice"}) == "");
  CHECK_THROWS_AS(replicate(net, {}), InvalidArgument);
  CHECK_THROWS_AS(replicate(net, devices_at({0, 99})), InvalidArgument);
}

TEST_CASE("replicas keep the module alive") {
  support::needs_devices(2);
  auto net = std::make_unique<MixedMembers>(on(MixedMembers{}, device_at(0)));
  const auto replicas = replicate(*net, first_devices(2));
  net.reset();
  CHECK(values(replicas[1](counting({1}, device_at(1)))) == Doubles{6.0 * 9 * 30 * 3});
}
