// Replicas that call backward() themselves: their gradients are kept apart until all have returned, and summed in
// replica order then, whoever was first.
#include <algorithm>

#include "lockstep/parallel/parallel_apply.h"
#include "lockstep/tensor/nn/linear.h"
#include "parallel/support.h"
#include "support/counter.h"

using namespace parallel_test;
using lockstep::test::Counter;

namespace {

// Lets threads pass one by one, in a given order.
class Turns {
 public:
  explicit Turns(std::vector<int> order) : order_(std::move(order)) {}
  template <class F>
  void take(int who, F&& body) const {
    passed_.reaches(static_cast<int>(std::find(order_.begin(), order_.end(), who) - order_.begin()));
    body();
    passed_.add();
  }

 private:
  std::vector<int> order_;
  Counter passed_;
};

Tensor floats(const std::vector<float>& values) {
  return from_data(values, {static_cast<std::int64_t>(values.size()), 1});
}

// Multiplies by its weight and calls backward on the sum, as often as asked for, in turn.
struct SelfTaught : Module<SelfTaught> {
  Parameter weight;
  explicit SelfTaught(const Tensor& value) : weight(value) {}
  Tensor forward(const Tensor& x, const Tensor& index) const {
    const auto learn = [&] {
      for (int i = 0; i < backwards; ++i) {
        const Tensor loss = (x * (by_hand ? weight.tensor().to(x.device()) : weight.on(x.device()))).sum();
        loss.backward({}, {.create_graph = create_graph});
      }
    };
    const int replica = static_cast<int>(index.to_vector<double>()[0]);
    if (replica == failing) throw Error("no");
    if (!turns) {
      learn();
    } else {
      turns->take(replica, [&] { side_streams ? on_side_streams(x.device(), learn) : learn(); });
    }
    return x;
  }
  void members(Members& m) override { m("weight", weight); }

  template <class F>
  void on_side_streams(Device device, F&& body) const {
    Stream here(device), home(weight.device());
    for (const Stream& stream : {here, home}) stream.wait_for(current_stream(stream.device()));
    {
      const StreamScope on_home(home), on_here(here);
      body();
    }
    for (const Stream& stream : {here, home}) current_stream(stream.device()).wait_for(stream);
  }
  const Turns* turns = nullptr;
  int backwards = 1, failing = -1;
  bool create_graph = false, by_hand = false, side_streams = false;
};

const float big = 1e8f;

}  // namespace

TEST_CASE("backward in replicas: the sum has the same bits, whoever comes first") {
  support::needs_devices(4);
  for (const auto& devices : {devices_at({0, 1, 2}), devices_at({3, 1, 2})}) {
    for (const auto& [create_graph, by_hand] : {std::pair{false, false}, {true, false}, {false, true}}) {
      auto net = DataParallel(SelfTaught{ones({1}, {.dtype = DType::f32})}, {.devices = devices});
      SelfTaught& module = net.module();
      module.create_graph = create_graph;
      module.by_hand = by_hand;
      std::vector<int> order{0, 1, 2};
      do {
        const Turns turns(order);
        module.turns = &turns;
        // Home's own comes first, then the sum of the others.
        net(floats({1, big, -big}), floats({0, 1, 2}));
        CHECK(module.weight.grad().item<float>() == 1);
        net.zero_grad();
        const Turns again(order);
        module.turns = &again;
        net(floats({big, 1, -big}), floats({0, 1, 2}));
        CHECK(module.weight.grad().item<float>() == 0);
        net.zero_grad();
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST_CASE("backward in replicas: several by each add up, in every form, on streams of all kinds") {
  for (const bool create_graph : {false, true}) {
    for (const bool by_hand : {false, true}) {
      const std::vector<Device> devices = devices_at({1, 0, 2});
      auto net = DataParallel(SelfTaught{counting({256})}, {.devices = devices});
      SelfTaught& module = net.module();
      module.backwards = 3;
      module.create_graph = create_graph;
      module.by_hand = by_hand;
      module.side_streams = true;
      Stream first(devices[0]), second(devices[1]), third(devices[2]);
      for (const Stream& stream : {first, second, third}) stream.wait_for(default_stream(stream.device()));
      const StreamScope on_first(first), on_second(second), on_third(third);
      for (int step = 1; step < 3; ++step) {
        const Turns turns({2, 0, 1});
        module.turns = &turns;
        net(counting({3, 256}), counting({3, 1}, Device::cpu(), 0));
        {
          // What a replica's gradients stood in may be had by others, but not before they have been read.
          const StreamScope on_default(default_stream(devices[1]));
          for (int i = 0; i < 8; ++i) full({256}, -1, {.dtype = DType::f64, .device = devices[1]});
        }
        Doubles expected;
        for (int i = 0; i < 256; ++i) expected.push_back(step * 3 * (3 * (1 + i) + 3 * 256));
        CHECK(values(module.weight.grad()) == expected);
      }
    }
  }
}

TEST_CASE("backward in replicas: rows stay rows, and mix with matrices") {
  struct Table : Module<Table> {
    Embedding table{4, 1, {.sparse = true}};
    Tensor forward(const Tensor& words, const Tensor& index) const {
      for (int i = 0; i < 2; ++i) table(words).sum().backward();
      if (mixed && index.to_vector<double>()[0] == 2) table.weight.on(words.device()).sum().backward();
      return words;
    }
    void members(Members& m) override { m("table", table); }
    bool mixed = false;
  };
  auto net = DataParallel(Table{}, {.devices = first_devices(3)});
  const Tensor words = from_data(std::vector<std::int64_t>{1, 2, 2, 0, 1, 1}, {3, 2});
  const Parameter& weight = net.module().table.weight;
  net(words, floats({0, 1, 2}));
  REQUIRE(weight.sparse_grad().defined());
  CHECK(weight.sparse_grad().indices.count() == 12);
  CHECK(values(weight.sparse_grad().to_dense()) == Doubles{2, 6, 4, 0});
  net.zero_grad();
  net.module().mixed = true;
  net(words, floats({0, 1, 2}));
  CHECK(values(weight.grad()) == Doubles{3, 7, 5, 1});
}

TEST_CASE("backward in replicas: home's replica sees its own gradient, hooks see home's and the sum of the others'") {
  support::needs_devices(3);
  const auto replicas = [](const SelfTaught& module) { return replicate(module, first_devices(3)); };
  SelfTaught module{tensor({1}, {1}, first_devices(1)[0])};
  std::vector<double> seen;
  module.weight.tensor().register_hook([&](Tensor& gradient) { seen.push_back(gradient.item<double>()); });
  const Turns turns({0, 1, 2});
  module.turns = &turns;
  using Input = std::tuple<Tensor, Tensor>;
  std::vector<Input> inputs;
  for (int i = 0; i < 3; ++i)
    inputs.push_back({tensor({10.0 + i}, {1}, first_devices(3)[static_cast<std::size_t>(i)]), tensor({1.0 * i}, {1})});
  // Without a wrapper too, where nobody has claimed the parameters for the call.
  parallel_apply(replicas(module), inputs);
  CHECK(seen == Doubles{10, 23});
  CHECK(values(module.weight.grad()) == Doubles{33});
}

TEST_CASE("backward in replicas: when one fails, what the others have for home is dropped") {
  auto net = DataParallel(SelfTaught{tensor({1}, {1})}, {.devices = first_devices(3)});
  net.module().failing = 2;
  CHECK_THROWS_AS(net(counting({3, 1}), counting({3, 1}, Device::cpu(), 0)), ReplicaError);
  CHECK(values(net.module().weight.grad()) == Doubles{1});  // home's own
  net.zero_grad();
  net.module().failing = -1;
  net(counting({3, 1}), counting({3, 1}, Device::cpu(), 0));
  CHECK(values(net.module().weight.grad()) == Doubles{6});
}
