// Weights that are replaced or refreshed while replicas compute. tests/user/serving.cpp does the same for longer.
#include <thread>

#include "lockstep/tensor/nn/module_slots.h"
#include "parallel/support.h"
#include "support/hidden_case.h"

using namespace parallel_test;
using Catch::Matchers::Contains;

namespace {

struct Part : Module<Part> {
  Parameter w{full({2}, 1, {.dtype = DType::f64}), false};
  Tensor forward(const Tensor& x) const { return x * w.on(x.device()); }
  void members(Members& m) override { m("w", w); }
};
struct Parts : Module<Parts> {
  std::vector<Part> parts;
  explicit Parts(int count) : parts(static_cast<std::size_t>(count)) {}
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Part& part : parts) y = part(y);
    return y;
  }
  void members(Members& m) override { m("parts", parts); }
};

}  // namespace

TEST_CASE("a module whose parts were wrapped one by one may be wrapped as a whole, however many there are") {
  const NoGrad no_grad;
  Parts net(12);
  std::vector<DataParallel<Part>> wrapped;
  for (const Part& part : net.parts) wrapped.emplace_back(part, DataParallelOptions{.devices = first_devices(2)});
  const Tensor x = full({4, 2}, 1, {.dtype = DType::f64});
  for (const auto& part : wrapped) CHECK(values(part(x)) == Doubles(8, 1));
  const DataParallel whole(net, {.devices = first_devices(2)});
  CHECK(values(whole(x)) == Doubles(8, 1));
  net.parts[0].w.tensor().fill_(2);
  net.parts[11].w.tensor().fill_(3);
  CHECK(values(whole(x)) == Doubles(8, 6));
  // No reader is left behind: a refresh of the first part waits for nobody.
  net.parts[0].w.tensor().fill_(5);
  CHECK(ModuleSlots(net.parts[0]).refresh(first_devices(2), Milliseconds(60'000)).copies == 1);
  const auto replicas = replicate(net, first_devices(2));
  CHECK(values(replicas[1](full({1, 2}, 1, {.dtype = DType::f64, .device = first_devices(2)[1]}))) == Doubles(2, 15));
}

TEST_CASE("a load from inside a replica is an error, at once") {
  const NoGrad no_grad;
  DataParallel net(Part(), {.devices = first_devices(2)});
  const Part part = net.module();
  struct Loads : Module<Loads> {
    Part part;
    Tensor forward(const Tensor& x) const {
      Part same = part;
      same.load_state_dict({{"w", full({2}, 7, {.dtype = DType::f64})}});
      return part(x);
    }
    void members(Members& m) override { m("part", part); }
  };
  Loads loads;
  loads.part = part;
  DataParallel wrapped(loads, {.devices = first_devices(2)});
  const Tensor x = full({4, 2}, 1, {.dtype = DType::f64});
  CHECK_THROWS_WITH(wrapped(x), Contains("expected a call from outside"));
  CHECK(values(net(x)) == Doubles(8, 1));
  net.load_state_dict({{"module.w", full({2}, 7, {.dtype = DType::f64})}});
  CHECK(values(net(x)) == Doubles(8, 7));
}

TEST_CASE("replicas checked against home while others stand in for the parameters", "[.verify]") {
  const NoGrad no_grad;
  Part part;
  const DataParallel net(part, {.devices = first_devices(2)});
  const Tensor x = full({4, 2}, 1, {.dtype = DType::f64});
  {
    const SubstituteScope scope({part.w}, {full({2}, 9, {.dtype = DType::f64, .device = first_devices(2)[0]})});
    part.w.assign(full({2}, 4, {.dtype = DType::f64}));
    CHECK(values(net(x)) == Doubles(8, 9));
  }
  CHECK(values(net(x)) == Doubles(8, 4));
  // And what is wrong is still found.
  const_cast<double*>(part.w.on(first_devices(2)[1]).data<double>())[0] = 1;
  CHECK_THROWS_WITH(net(x), Contains("differs on " + device_name(1)));
}

TEST_CASE("LOCKSTEP_VERIFY_REPLICAS compares replicas with home, whatever stands in for the parameters") {
  CHECK(lockstep::test::run_hidden_case("replicas checked against home while others stand in for the parameters",
                                        "LOCKSTEP_HOST_MODE=inline LOCKSTEP_VERIFY_REPLICAS=1"));
}
