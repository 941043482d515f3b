#include "lockstep/parallel/openmmlab/fewshot/meta_test_parallel.h"

#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/openmmlab/data/data_container.h"
#include "lockstep/parallel/openmmlab/model/model_wrapper.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/rnn.h"
#include "parallel/support.h"

namespace {

using namespace parallel_test;

// Tells what it is called with, and remembers it in every way that a module can.
struct ParallelProbe : Module<ParallelProbe> {
  Parameter weight{counting({2})};
  Buffer seen{zeros({1}, {.dtype = DType::f64})};
  std::optional<Linear> head;
  Tensor kept = counting({2});
  int calls = 0;

  std::string forward(const Tensor& x, const std::string& name) const {
    return cat(name, " on ", x.device(), " ", sum(x * weight.on(x.device())).item<double>());
  }
  std::string forward() const { return "no arguments"; }
  Device before_meta_test(const std::vector<Tensor>& tensors, const char* literal) {
    return std::string(literal) == "settings" ? tensors.at(1).device() : Device::cpu();
  }
  int before_meta_test() { return 7; }
  void before_forward_support(int count) { calls += count; }
  int before_forward_support() { return ++calls; }
  const Tensor& before_forward_query(const Tensor& x) { return kept = x; }
  void before_forward_query() { kept = kept + 1; }
  void members(Members& m) override { m("weight", weight), m("seen", seen), m("head", head); }
};

// The mean of a batch, with a word that stays on the host.
struct TakesContainers : Module<TakesContainers> {
  Parameter weight{counting({1})};
  std::string forward(const DataContainer<Tensor>& images, const DataContainer<std::string>& names) const {
    const Tensor scaled = images.stacked() * weight.on(images.stacked().device());
    return cat(names.list().at(1), " ", scaled.device(), " ", mean(scaled).item<double>());
  }
  void before_forward_query(const Tensor&) {}
  void members(Members& m) override { m("weight", weight); }
};

struct Reads : Module<Reads> {
  GRU gru{1, 2};
  PackedSequence forward(const PackedSequence& x) const { return gru(x).output; }
  void members(Members& m) override { m("gru", gru); }
};

struct Nothing : Module<Nothing> {
  Device forward(const Tensor& x) const { return x.device(); }
};

const Device kFirst = Device::host(1), kSecond = Device::host(2);

}  // namespace

TEST_CASE("MetaTestParallel: the four calls get their arguments on the module's device and return its values") {
  MetaTestParallel wrapper(ParallelProbe{});
  wrapper.to(kFirst);
  CHECK(wrapper.device() == kFirst);
  CHECK(wrapper(tensor({3, 4}, {2}), std::string("a tensor")) == "a tensor on host:1 11");
  CHECK(wrapper(tensor({3, 4}, {2}, kSecond), std::string("from elsewhere")) == "from elsewhere on host:1 11");
  CHECK(wrapper.before_meta_test(std::vector<Tensor>{counting({1}), counting({5})}, "settings") == kFirst);
  wrapper.before_forward_support(5);
  CHECK(wrapper.module().calls == 5);
  const Tensor given = tensor({8, 9}, {2}, kSecond);
  CHECK(wrapper.before_forward_query(given).device() == kFirst);
  CHECK(values(wrapper.module().kept) == Doubles{8, 9});
}

TEST_CASE("MetaTestParallel: no arguments at all are a call without arguments") {
  MetaTestParallel wrapper(ParallelProbe{});
  wrapper.to(kFirst);
  CHECK(wrapper() == "no arguments");
  CHECK(wrapper.before_meta_test() == 7);
  CHECK(wrapper.before_forward_support() == 1);
  wrapper.before_forward_query();
  CHECK(values(wrapper.module().kept) == Doubles{2, 3});
}

TEST_CASE("MetaTestParallel: it follows its module, and is on cpu without parameters") {
  MetaTestParallel wrapper(ParallelProbe{});
  CHECK(wrapper.device() == Device::cpu());
  CHECK(wrapper(tensor({1, 1}, {2}, kFirst), std::string("x")) == "x on cpu 3");
  for (const Device device : {kFirst, kSecond, Device::cpu(), kFirst}) {
    device == kSecond ? wrapper.module().to(device) : wrapper.to(device);
    CHECK(wrapper.device() == device);
    CHECK(wrapper(tensor({1, 1}, {2}), std::string("x")) == cat("x on ", device, " 3"));
  }
  MetaTestParallel<ParallelProbe> copy = deep_copy(wrapper);
  copy.to(kSecond);
  CHECK(copy.before_forward_query(counting({2})).device() == kSecond);
  CHECK(wrapper.before_forward_query(counting({2})).device() == kFirst);
  CHECK(MetaTestParallel(Nothing{})(counting({2}, kFirst)) == Device::cpu());
}

TEST_CASE("MetaTestParallel: a DataContainer holds one group") {
  MetaTestParallel wrapper(TakesContainers{});
  const auto images = DataContainer<Tensor>::of_stacks({counting({2, 1})});
  const auto names = DataContainer<std::string>::of_lists({{"first", "second"}}, {.cpu_only = true});
  CHECK(wrapper(images, names) == "second cpu 1.5");
  wrapper.to(kFirst);
  CHECK(wrapper(images, names) == "second host:1 1.5");
  const auto two = DataContainer<Tensor>::of_stacks({counting({2, 1}), counting({2, 1})});
  CHECK(missing(message_of<InvalidArgument>([&] { wrapper(two, names); }), {"[scatter]", "2", "1"}) == "");
}

TEST_CASE("MetaTestParallel: a tensor without dimensions is taken as it is, wherever the model is") {
  struct Returns : Module<Returns> {
    Parameter weight{counting({1})};
    Tensor forward(const Tensor& x) const { return x; }
    Tensor before_forward_query(const Tensor& x) const { return x; }
    void members(Members& m) override { m("weight", weight); }
  };
  MetaTestParallel wrapper(Returns{});
  const Tensor number = tensor(3.5, {.dtype = DType::f64});
  for (const Device device : {Device::cpu(), kFirst, Device::cpu()}) {
    wrapper.to(device);
    CHECK(wrapper(number).device() == device);
    CHECK(wrapper(number).rank() == 0);
    CHECK(wrapper.before_forward_query(number).item<double>() == 3.5);
  }
}

TEST_CASE("MetaTestParallel: packed sequences are moved whole") {
  MetaTestParallel wrapper(Reads{});
  wrapper.to(kFirst);
  const PackedSequence got = wrapper(pack_sequence({zeros({1, 1}), zeros({3, 1})}, false));
  CHECK(got.data.device() == kFirst);
  CHECK(got.lengths() == std::vector<std::int64_t>{1, 3});
}

TEST_CASE("MetaTestParallel: a deep copy is independent of its source") {
  MetaTestParallel source(ParallelProbe{});
  source.module().head.emplace(2, 3);
  source.to(kFirst);
  MetaTestParallel<ParallelProbe> copy = deep_copy(source);
  const Doubles head = values(source.module().head->weight.tensor().to(DType::f64));

  const NoGrad no_grad;
  copy.module().weight.tensor().fill_(100);
  copy.module().seen.tensor().fill_(1);
  copy.module().head->weight.tensor().fill_(0);
  copy.module().weight.set_grad(ones({2}, {.dtype = DType::f64, .device = kFirst}));
  copy.eval();
  copy.set_requires_grad(false);
  copy.before_forward_support(3);
  copy.before_forward_query();  // assigns the tensor that is no member

  CHECK(values(source.module().weight.tensor()) == Doubles{1, 2});
  CHECK(values(source.module().seen.tensor()) == Doubles{0});
  CHECK(values(source.module().head->weight.tensor().to(DType::f64)) == head);
  CHECK_FALSE(source.module().weight.grad().defined());
  CHECK(source.is_training());
  CHECK(source.module().is_training());
  CHECK(source.module().weight.requires_grad());
  CHECK(source.module().calls == 0);
  CHECK(values(source.module().kept) == Doubles{1, 2});
  CHECK(values(copy.module().kept) == Doubles{2, 3});
  CHECK(values(copy.module().weight.tensor()) == Doubles{100, 100});
}

TEST_CASE("MetaTestParallel: it is a module with its module as a member, and a wrapper") {
  const MetaTestParallel wrapper(ParallelProbe{});
  std::vector<std::string> names;
  for (const NamedTensor& named : wrapper.state_dict()) names.push_back(named.name);
  CHECK(names == std::vector<std::string>{"module.weight", "module.seen"});
  CHECK(wrapper.wrapped_module() == &wrapper.module());
  CHECK(is_model_wrapper(wrapper));
  CHECK_FALSE(is_model_wrapper(wrapper.module()));
}
