// DataParallel: what goes in, what comes out, what can be overridden.
#include "lockstep/parallel/data_parallel.h"

#include <thread>

#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct CallSample {
  Tensor image;
  double scale = 1;
  void fields(auto& f) { f(image, scale); }
};
struct Result {
  Tensor image;
  std::vector<Tensor> parts;
  void fields(auto& f) { f(image, parts); }
};

struct Structured : Module<Structured> {
  Parameter weight{tensor({2}, {1})};
  Result forward(const CallSample& sample, int power, const std::string& mode) const {
    Tensor y = sample.image * weight.on(sample.image.device()) * sample.scale;
    for (int i = 1; i < power; ++i) y = y * y;
    return {y, {mode == "both" ? y + 1 : y}};
  }
  void members(Members& m) override { m("weight", weight); }
};

struct Numbers : Module<Numbers> {
  std::tuple<double, std::string> forward(const Tensor& x) const {
    return {x.sum().item<double>(), to_string(x.device())};
  }
};
struct Nothing : Module<Nothing> {
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);
  void forward(const Tensor&) const { ++*calls; }
};
struct NoInputs : Module<NoInputs> {
  Parameter weight{tensor({2, 3}, {2})};
  Device home;
  Tensor forward() const { return weight.tensor() * 2; }
  void members(Members& m) override { m("weight", weight); }
};
struct Dynamic : Module<Dynamic> {
  Value forward(const Value& batch) const {
    return Value::Map{{"y", batch.at("x").as_tensor() * 2}, {"n", batch.at("n")}};
  }
};
struct MixedDTypes : Module<MixedDTypes> {
  CallSample forward(const Tensor& x) const { return {x * 2, 0.5}; }  // cannot be gathered
};
struct Overloaded : Module<Overloaded> {
  Tensor forward(const Tensor& x) const { return x * 2; }
  Tensor forward(const Tensor& x, const Tensor& y) const { return x * y; }
};
struct Mean : Module<Mean> {
  Tensor forward(const Tensor& x) const { return x.sum(); }
};

}  // namespace

TEST_CASE("the same result as the module's on one device, for every device set") {
  for (const auto& devices : device_sets()) {
    Mlp reference;
    const auto net = DataParallel(deep_copy(reference), {.devices = devices});
    for (const std::int64_t batch : {7, 1, 16, 2, 9, 8}) {
      const Tensor x = noise({batch, 3}, static_cast<std::uint64_t>(batch));
      const Tensor y = net(x);
      CHECK(y.device() == devices[0]);
      CHECK(y.shape() == Shape{batch, 2});
      CHECK(largest_difference(y, reference(x)) < 1e-10);
    }
  }
}

TEST_CASE("defaults: all accelerators, results on devices[0]") {
  const auto net = DataParallel(Mlp{});
  CHECK(net.devices() == accelerators());
  CHECK(net.output_device() == device_at(0));
  CHECK(net.module().first.weight.device() == device_at(0));
  CHECK(net.dim() == 0);
  CHECK(net.timeout() == kDefaultTimeout);
}

TEST_CASE("structs, numbers and strings go in, structs come out") {
  for (const auto& devices : device_sets()) {
    const auto net = DataParallel(Structured{}, {.devices = devices, .output_device = Device::cpu()});
    CHECK(net.output_device() == Device::cpu());
    const Result result = net(CallSample{counting({5}), 0.5}, 2, std::string("both"));
    CHECK(result.image.device() == Device::cpu());
    CHECK(values(result.image) == Doubles{1, 4, 9, 16, 25});
    CHECK(values(result.parts[0]) == Doubles{2, 5, 10, 17, 26});
  }
}

TEST_CASE("numbers and strings come out as a vector with one per replica, for every number of devices") {
  for (const auto& devices : device_sets()) {
    const auto net = DataParallel(Numbers{}, {.devices = devices});
    const std::tuple<Doubles, std::vector<std::string>> result =
        net(counting({static_cast<std::int64_t>(devices.size())}));
    REQUIRE(std::get<0>(result).size() == devices.size());
    CHECK(std::get<0>(result).back() == static_cast<double>(devices.size()));
    CHECK(std::get<1>(result)[0] == to_string(devices[0]));
  }
  const std::tuple<Doubles, std::vector<std::string>> direct = DataParallel(Numbers{}, {.devices = {}})(counting({2}));
  CHECK(std::get<0>(direct) == Doubles{3});
}

TEST_CASE("the rank of a result does not depend on the number of devices") {
  support::needs_devices(4);
  for (const auto& devices : {first_devices(1), first_devices(2), devices_at({3, 1, 2}), devices_at({})}) {
    const Tensor sums = DataParallel(Mean{}, {.devices = devices})(counting({6}));
    CHECK(sums.rank() == 1);
    CHECK(sums.sum().item<double>() == 21);
    if (!devices.empty()) CHECK(sums.size(0) == static_cast<std::int64_t>(devices.size()));
  }
}

TEST_CASE("modules without outputs, and without inputs") {
  const auto nothing = DataParallel(Nothing{}, {.devices = first_devices(3)});
  static_assert(std::is_void_v<decltype(nothing(counting({3})))>);
  nothing(counting({3}));
  CHECK(*nothing.module().calls == 3);
  nothing.forward_ungathered(counting({2}));
  CHECK(*nothing.module().calls == 5);
  CHECK(nothing.stats().calls == 2);

  const auto no_inputs = DataParallel(NoInputs{}, {.devices = devices_at({2, 1})});
  const Tensor y = no_inputs();  // one call on devices[0]
  CHECK(y.device() == device_at(2));
  CHECK(values(y) == Doubles{4, 6});
}

TEST_CASE("run-time values go in and come out") {
  const auto net = DataParallel(Dynamic{}, {.devices = first_devices(2)});
  const Value y = net(Value(Value::Map{{"x", counting({4})}, {"n", 3}}));
  CHECK(values(y.at("y").as_tensor()) == Doubles{2, 4, 6, 8});
  CHECK(y.at("n").as_list().size() == 2);
}

TEST_CASE("outputs that cannot be gathered are still there ungathered") {
  const auto net = DataParallel(MixedDTypes{}, {.devices = first_devices(2)});
  const std::vector<CallSample> outputs = net.forward_ungathered(counting({4}));
  REQUIRE(outputs.size() == 2);
  CHECK(outputs[1].image.device() == device_at(1));
  CHECK(values(outputs[1].image) == Doubles{6, 8});
}

TEST_CASE("forward_ungathered returns the pieces where they are") {
  const auto net = DataParallel(Mlp{}, {.devices = devices_at({3, 0, 1}), .output_device = Device::cpu()});
  const std::vector<Tensor> outputs = net.forward_ungathered(noise({5, 3}, 1));
  REQUIRE(outputs.size() == 3);
  CHECK(outputs[0].device() == device_at(3));
  CHECK(outputs[2].device() == device_at(1));
  CHECK(outputs[2].shape() == Shape{1, 2});
}

TEST_CASE("an overloaded forward needs its signature") {
  const DataParallel<Overloaded, Tensor(const Tensor&, const Tensor&)> net(Overloaded{}, {.devices = first_devices(2)});
  CHECK(values(net(counting({4}), counting({4}))) == Doubles{1, 4, 9, 16});
}

TEST_CASE("an explicit empty list: the module is called directly") {
  Mlp module;
  module.to(device_at(4));
  const auto net = DataParallel(module, {.devices = {}});
  CHECK(net.devices().empty());
  CHECK(net.output_device() == device_at(4));
  CHECK(net.module().first.weight.device() == device_at(4));  // not moved
  const Tensor x = noise({3, 3}, 1, device_at(4));
  CHECK(values(net(x)) == values(module(x)));
  CHECK(net(x).device() == device_at(4));
  CHECK(DataParallel(module, {.devices = {}, .output_device = Device::cpu()})(x).device() == Device::cpu());
}

TEST_CASE("the constructor moves the module to devices[0], for any number of devices") {
  for (const auto& devices : device_sets()) {
    Mlp module;
    module.first.weight.tensor().sum();
    const auto net = DataParallel(module, {.devices = devices});
    for (const Parameter& parameter : net.parameters()) CHECK(parameter.device() == devices[0]);
    CHECK(module.first.weight.device() == devices[0]);  // the same body
  }
}

TEST_CASE("one device: type, rank and output device as for several") {
  support::needs_devices(6);
  const auto net = DataParallel(Mlp{}, {.devices = devices_at({2}), .output_device = device_at(5)});
  const Tensor y = net(noise({3, 3}, 1));
  CHECK(y.device() == device_at(5));
  CHECK(y.shape() == Shape{3, 2});
  CHECK(net.stats().last.replicate.bytes == 0);
}

TEST_CASE("fewer pieces than devices use fewer replicas; policies decide the pieces") {
  support::needs_devices(5);
  const auto devices_used = [](DataParallelOptions options, std::int64_t batch) {
    const auto net = DataParallel(Numbers{}, std::move(options));
    return std::get<1>(net(counting({batch})));
  };
  using Names = std::vector<std::string>;
  CHECK(devices_used({.devices = first_devices(5)}, 2) == Names{device_name(0), device_name(1)});
  CHECK(devices_used({.devices = first_devices(4)}, 9) == Names{device_name(0), device_name(1), device_name(2)});
  CHECK(devices_used({.devices = first_devices(3), .policy = ScatterPolicy::weights({0, 1, 1})}, 4) ==
        Names{device_name(1), device_name(2)});
  CHECK(devices_used({.devices = first_devices(3)}, 0) == Names{device_name(0)});
  const auto sized = DataParallel(Numbers{}, {.devices = first_devices(3), .policy = ScatterPolicy::sizes({1, 2, 3})});
  CHECK(std::get<0>(sized(counting({6}))) == Doubles{1, 5, 15});
  CHECK_THROWS_AS(sized(counting({7})), InvalidArgument);

  // Home without a piece still fills the others.
  const auto far = DataParallel(Mlp{}, {.devices = first_devices(2), .policy = ScatterPolicy::weights({0, 1})});
  const Tensor x = noise({4, 3}, 2);
  const Tensor y = far(x);
  CHECK(largest_difference(y, DataParallel(far.module(), {.devices = first_devices(1)})(x)) < 1e-10);
  y.sum().backward();
  CHECK(far.module().first.weight.grad().defined());
}

TEST_CASE("another dim") {
  const auto net = DataParallel(Scale({1, 2, 3}), {.devices = first_devices(2), .dim = 1});
  struct Turn : Module<Turn> {
    Tensor forward(const Tensor& x) const { return x * 2; }
  };
  const auto turn = DataParallel(Turn{}, {.devices = first_devices(2), .dim = -1});
  CHECK(values(turn(counting({2, 3}))) == Doubles{2, 4, 6, 8, 10, 12});
  CHECK_THROWS_AS(net(counting({4})), InvalidArgument);
}

TEST_CASE("the function form") {
  Mlp module;
  const Tensor x = noise({5, 3}, 3);
  const Tensor expected = module(x);
  const Tensor y = data_parallel(module, x, {.devices = first_devices(3)});
  CHECK(largest_difference(y, expected) < 1e-10);
  CHECK(y.device() == device_at(0));
  const std::uint64_t before = detail::moved_bytes();
  data_parallel(module, std::tuple(x.to(device_at(0))), {.devices = first_devices(1)});
  CHECK(detail::moved_bytes() == before);
  const Result result = data_parallel(Structured{}, std::tuple(CallSample{counting({5}), 0.5}, 1, std::string()),
                                      {.devices = first_devices(2)});
  CHECK(values(result.image) == Doubles{1, 2, 3, 4, 5});
}

TEST_CASE("state names are those of the module with the prefix module.") {
  const auto net = DataParallel(Mlp{}, {.devices = first_devices(2)});
  std::vector<std::string> names;
  for (const NamedTensor& entry : net.state_dict()) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"module.first.weight", "module.first.bias", "module.second.weight",
                                          "module.second.bias"});
}

TEST_CASE("copies share the parameters, deep copies do not") {
  auto net = DataParallel(Scale({1, 2}), {.devices = first_devices(2)});
  net(counting({2, 2}));
  const auto copy = net;
  const auto deep = deep_copy(net);
  {
    const NoGrad off;
    net.module().weight.tensor().fill_(5);
  }
  CHECK(values(copy(counting({2, 2}))) == Doubles{5, 10, 15, 20});
  CHECK(values(deep(counting({2, 2}))) == Doubles{1, 4, 3, 8});
  copy(counting({2, 2})).sum().backward();
  CHECK(net.module().weight.grad().defined());
  CHECK_FALSE(deep.module().weight.grad().defined());
}

TEST_CASE("a parameter that is replaced through module() is found") {
  auto net = DataParallel(Scale({1, 2}), {.devices = first_devices(2)});
  net(counting({2, 2}));
  net.module().weight = Parameter(tensor({3, 4}, {2}, device_at(0)));
  CHECK(values(net(counting({2, 2}))) == Doubles{3, 8, 9, 16});
}

TEST_CASE("the mode of the wrapper is that of the module below, in every replica") {
  struct Mode : Module<Mode> {
    bool forward(const Tensor&) const { return is_training(); }
  };
  auto net = DataParallel(Mode{}, {.devices = first_devices(3)});
  CHECK(net(counting({3})) == std::vector<bool>{true, true, true});
  net.eval();
  CHECK(net(counting({3})) == std::vector<bool>{false, false, false});
  const TrainingScope training(true);
  CHECK(net(counting({3})) == std::vector<bool>{true, true, true});
}

TEST_CASE("every step can be overridden") {
  support::needs_devices(4);
  struct Net : DataParallel<Scale> {
    using DataParallel<Scale>::DataParallel;
    mutable std::vector<std::string> steps;
    mutable bool own_gather = false;

   protected:
    Pieces<Inputs> scatter(const Inputs& inputs) const override {
      steps.push_back("scatter");
      return DataParallel::scatter(std::tuple(std::get<0>(inputs) + 1));
    }
    std::vector<Replica<Scale>> replicate(const std::vector<Device>& devices) const override {
      steps.push_back(cat("replicate ", devices));
      return DataParallel::replicate(devices);
    }
    std::vector<Output> parallel_apply(const std::vector<Replica<Scale>>& replicas,
                                       std::vector<Inputs> inputs) const override {
      steps.push_back("parallel_apply");
      return DataParallel::parallel_apply(replicas, std::move(inputs));
    }
    Gathered gather(std::vector<Output> outputs) const override {
      steps.push_back("gather");
      return own_gather ? outputs[1] : DataParallel::gather(std::move(outputs));
    }
  };
  const Net net(Scale({1, 10}), {.devices = devices_at({2, 0})});
  const Tensor x = tensor({0, 0, 1, 1}, {2, 2});
  CHECK(values(net(x)) == Doubles{1, 10, 2, 20});
  CHECK(net.steps == std::vector<std::string>{"scatter", "replicate [" + device_name(2) + ", " + device_name(0) + "]",
                                              "parallel_apply", "gather"});
  net.own_gather = true;
  CHECK(values(net(x)) == Doubles{2, 20});

  // Every call, on one device too.
  const std::vector<std::string> without_gather{"scatter", "replicate [" + device_name(2) + ", " + device_name(0) + "]",
                                                "parallel_apply"};
  net.steps.clear();
  net.forward_ungathered(x);
  CHECK(net.steps == without_gather);
  net.steps.clear();
  CHECK(net.reduce_with([](const Tensor& y, const Tensor& t) { return (y + t).sum(); }, x, x).item<double>() ==
        Approx((1 + 10 + 2 + 20 + 2) / 2.0));
  CHECK(net.steps == without_gather);
  const Net alone(Scale({1, 10}), {.devices = devices_at({3})});
  CHECK(values(alone(x)) == Doubles{1, 10, 2, 20});
  CHECK(alone.steps ==
        std::vector<std::string>{"scatter", "replicate [" + device_name(3) + "]", "parallel_apply", "gather"});
  alone.steps.clear();
  alone.reduce_with([](const Tensor& y) { return y.sum(); }, x);
  CHECK(alone.steps == std::vector<std::string>{"scatter", "replicate [" + device_name(3) + "]", "parallel_apply"});
}

TEST_CASE("the balance check: one warning that names both devices, memory before multiprocessors") {
  support::needs_devices(8);
  support::needs_unequal_devices();
  CapturedLog log;
  DataParallel(Mlp{}, {.devices = first_devices(3)});
  CHECK(log.messages.empty());
  DataParallel(Mlp{}, {.devices = devices_at({0, 6, 7})});  // 6 has half the memory, 7 half the multiprocessors
  REQUIRE(log.messages.size() == 1);
  CHECK(missing(log.messages[0], {device_name(6), device_name(0), "memory"}) == "");
  DataParallel(Mlp{}, {.devices = devices_at({0, 7})});
  REQUIRE(log.messages.size() == 2);
  CHECK(missing(log.messages[1], {device_name(7), device_name(0), "multiprocessors"}) == "");
  data_parallel(Mlp{}, noise({2, 3}, 1), {.devices = devices_at({0, 7})});
  DataParallel(Mlp{}, {.devices = devices_at({7})});
  CHECK(log.messages.size() == 2);
}
