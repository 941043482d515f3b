// The engine on streams of the caller's own. In host mode strict the order checker reports an edge that is missing; in
// the others these cases check the values.
#include <deque>

#include "lockstep/runtime/topology.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

// A stream of its own on every device, current while it lives, after what is on the default streams and before what
// comes there afterwards.
class Aside {
 public:
  explicit Aside(const std::vector<Device>& devices) {
    for (const Device device : devices) {
      streams_.emplace_back(device);
      streams_.back().wait_for(default_stream(device));
      scopes_.emplace_back(streams_.back());
    }
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;
  ~Aside() {
    while (!scopes_.empty()) scopes_.pop_back();  // the innermost first
    for (const Stream& stream : streams_) default_stream(stream.device()).wait_for(stream);
  }
  const Stream& operator[](std::size_t i) { return streams_[i]; }

 private:
  std::deque<Stream> streams_;
  std::deque<StreamScope> scopes_;
};

// Reports of what was released too early come with the next operation.
void nothing_to_report(const std::vector<Device>& devices) {
  for (const Device device : devices) {
    CHECK_NOTHROW(counting({1}, device));
    CHECK_NOTHROW(synchronize(device));
  }
}

}  // namespace

TEST_CASE("an output may go while it is gathered on another stream") {
  support::needs_devices(3);
  for (int round = 0; round < 10; ++round) {
    std::vector<Tensor> pieces{counting({2}, device_at(1)).mul_(2), counting({2}, device_at(2)).mul_(3)};
    Tensor joined;
    {
      const Aside aside(first_devices(3));
      joined = gather(pieces, device_at(0));
      pieces.clear();
      CHECK_NOTHROW(counting({2}, device_at(1)));
      CHECK(values(joined) == Doubles{2, 4, 3, 6});
    }
    joined = Tensor();
  }
  nothing_to_report(first_devices(3));
}

TEST_CASE("a tensor may be written, or go, while its pieces are on their way") {
  support::needs_devices(3);
  for (const Device home : {device_at(0), Device::cpu()}) {
    for (int round = 0; round < 10; ++round) {
      Tensor x = counting({4}, home).mul_(2);
      std::vector<Tensor> pieces, again;
      {
        const Aside aside(first_devices(3));
        pieces = scatter(x, devices_at({1, 2}));
        CHECK_NOTHROW(x.add_(1));
        again = scatter(x, devices_at({2, 1}));
        if (home != Device::cpu()) default_stream(home).wait_for(current_stream(home));  // for add_, not the copies
        again = scatter(x, devices_at({2, 1}));
        x = Tensor();
        CHECK_NOTHROW(counting({4}, device_at(0)));
        CHECK(values(pieces[0]) == Doubles{2, 4});
        CHECK(values(again[1]) == Doubles{7, 9});
      }
      pieces.clear(), again.clear();
    }
  }
  nothing_to_report(first_devices(3));
}

TEST_CASE("the gradient of pieces is put together on the stream that scattered them") {
  support::needs_devices(3);
  const Device home = device_at(0);
  Tensor x = counting({4}, home).set_requires_grad();
  std::vector<Stream> seen, expected;
  std::vector<Tensor> pieces;
  {
    Aside aside(devices_at({0, 1, 2}));
    expected = {aside[0]};
    pieces = scatter(x, devices_at({1, 2}));
    pieces[0].register_hook([&](Tensor&) { seen.push_back(current_stream(home)); });
  }
  ((pieces[0] * 2).to(home) + (pieces[1] * 3).to(home)).sum().backward();
  CHECK(seen == expected);
  CHECK(values(x.grad()) == Doubles{2, 2, 3, 3});
  pieces.clear();
  nothing_to_report(first_devices(3));
}

TEST_CASE("training on streams of one's own, and on others in between, is training") {
  for (const auto& devices : device_sets()) {
    Mlp reference;
    auto net = DataParallel(Mlp{}, {.devices = devices});
    SGD one(reference.parameters(), {.lr = 0.1}), many(net.parameters(), {.lr = 0.1});
    std::uint64_t seed = 20;
    for (int step = 0; step < 4; ++step) {
      const Tensor x = noise({8, 3}, ++seed), t = noise({8, 2}, ++seed);
      const auto train = [&](auto& module, SGD& optimizer, Device output) {
        optimizer.zero_grad();
        mse_loss(module(x), t.to(output)).backward();
        optimizer.step();
      };
      train(reference, one, Device::cpu());
      if (step % 2 == 1) {
        train(net, many, net.output_device());
      } else {
        const Aside aside(devices);
        train(net, many, net.output_device());
      }
    }
    const auto expected = reference.parameters(), got = net.parameters();
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(largest_difference(got[i].tensor(), expected[i].tensor()) < 1e-10);
    nothing_to_report(devices);
  }
}

TEST_CASE(
    "gradients that are too many for one device to sum come home on streams of one's own, whichever way they go") {
  support::needs_devices(3);
  struct Large : Module<Large> {
    Parameter a{zeros({100'000}, {.dtype = DType::f64})}, b{zeros({3}, {.dtype = DType::f64})},
        c{zeros({100'000}, {.dtype = DType::f64})};
    Tensor forward(const Tensor& x) const {
      const auto on = [&](const Parameter& parameter) { return parameter.on(x.device()).sum(); };
      return x * (on(a) + on(b) + on(c));
    }
    void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
  };
  const std::vector<Device> devices = first_devices(3);
  for (const bool chain : {false, true}) {
    CAPTURE(chain);
    if (chain) {
      Links uneven_links(3);
      uneven_links.at(1, 2).speed = 0.5;
      detail::pretend_links(devices, uneven_links);
    }
    {
      const Aside aside(devices);
      std::vector<Tensor> gradients;
      for (int step = 1; step <= 2; ++step) {
        const auto net = DataParallel(Large{}, {.devices = devices});
        for (int backward = 0; backward < step; ++backward) net(counting({3, 1}, devices[0])).sum().backward();
        for (const Parameter& parameter : net.parameters()) gradients.push_back(parameter.grad());
      }
      std::vector<Tensor> takers;  // of what has been given back too early
      for (const Device device : devices) {
        const StreamScope scope(default_stream(device));
        for (const std::int64_t count : {100'000, 200'003, 300'000})
          takers.push_back(full({count}, 1e30, {.dtype = DType::f64, .device = device}).clone());
      }
      for (std::size_t i = 0; i < gradients.size(); ++i)
        CHECK(equal(gradients[i],
                    full(gradients[i].shape(), i < 3 ? 6 : 12, {.dtype = DType::f64, .device = devices[0]})));
    }
    nothing_to_report(devices);
    detail::forget_topologies();
  }
}

TEST_CASE("a DataParallel that is made on streams of one's own has its module's weights") {
  support::needs_devices(2);
  const std::vector<Device> devices = first_devices(2);
  const Tensor x = noise({4, 64}, 1);
  Linear net(64, 64);
  net.to(DType::f64);
  const Doubles expected = values(net(x));
  net.to(devices[0]);
  Doubles got;
  {
    const Aside aside(devices);
    const auto parallel = DataParallel(net, {.devices = devices});
    for (int taker = 0; taker < 8; ++taker) {  // of what has been given back too early
      const StreamScope scope(default_stream(devices[0]));
      (void)full({taker % 2 == 0 ? 64 * 64 : 64}, 1e6, {.dtype = DType::f64, .device = devices[0]}).clone();
    }
    const NoGrad no_grad;
    got = values(parallel(x));
  }
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-12);
  nothing_to_report(devices);
}

TEST_CASE("weights and mirrors that go when their module is converted have been read on streams of one's own") {
  support::needs_devices(2);
  const std::vector<Device> devices = first_devices(2);
  const Tensor x = noise({4, 64}, 1);
  Linear net(64, 64);
  net.to(DType::f64);
  const Doubles expected = values(net(x));
  net.to(devices[0]);
  auto parallel = DataParallel(net, {.devices = devices});
  const NoGrad no_grad;
  (void)parallel(x);
  Tensor got;
  {
    const Aside aside(devices);
    Tensor before = full({200'000}, 1, {.device = devices[1]});
    for (int i = 0; i < 20; ++i) before = before * 1.0;  // what the replica has to wait for
    got = parallel(x);
    {
      const StreamScope back(default_stream(devices[0])), there(default_stream(devices[1]));
      parallel.module().to(DType::f32);
      for (int taker = 0; taker < 8; ++taker)  // of what has been given back too early
        (void)full({taker % 2 == 0 ? 64 * 64 : 64}, 1e6, {.dtype = DType::f64, .device = devices[1]});
    }
    const Doubles found = values(got);
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - expected[i]) < 1e-12);
  }
  nothing_to_report(devices);
}

TEST_CASE("the pieces of a batch on streams of one's own give gradients that add up") {
  for (const auto& devices : device_sets()) {
    const Aside aside(devices);
    for (const Device source : {devices.back(), Device::cpu()}) {
      const Tensor x = counting({7, 5}, source).clone().set_requires_grad();
      std::vector<Tensor> pieces = scatter(x, devices);
      for (Tensor& piece : pieces) piece = piece * piece * 2;  // each piece gets two gradients
      (gather(pieces, devices[0]) * counting({7, 5}, devices[0], 3)).sum().backward();
      CHECK(values(x.grad()) == values(4 * x.detach() * counting({7, 5}, source, 3)));
    }
    for (const Device device : devices) synchronize(device);
  }
}

TEST_CASE("a backward that is called on other streams than its forward") {
  for (const auto& devices : device_sets()) {
    Mlp reference;
    auto net = DataParallel(Mlp{}, {.devices = devices});
    SGD one(reference.parameters(), {.lr = 0.1}), many(net.parameters(), {.lr = 0.1});
    std::uint64_t seed = 20;
    for (int step = 0; step < 4; ++step) {
      const Tensor x = noise({8, 3}, ++seed), t = noise({8, 2}, ++seed);
      one.zero_grad();
      many.zero_grad();
      mse_loss(reference(x), t).backward();
      one.step();
      Tensor loss;
      {
        const Aside aside(devices);
        loss = mse_loss(net(x), t.to(net.output_device()));
        if (step % 2 == 1) {
          loss.backward();
          loss = Tensor();
        }
      }
      if (loss.defined()) loss.backward();
      many.step();
    }
    const auto expected = reference.parameters(), got = net.parameters();
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(largest_difference(got[i].tensor(), expected[i].tensor()) < 1e-10);
    nothing_to_report(devices);
  }
}

TEST_CASE("sparse gradients on streams of one's own") {
  struct Words : Module<Words> {
    Embedding table;
    explicit Words(bool sparse) : table(9, 2, {.sparse = sparse}) {
      table.to(DType::f64);
      table.weight.assign(counting({9, 2}));
    }
    Tensor forward(const std::pair<Tensor, Tensor>& in) const { return table(in.first) * in.second; }
    void members(Members& m) override { m("table", table); }
  };
  for (const auto& devices : device_sets()) {
    Words reference(false);
    auto net = DataParallel(Words(true), {.devices = devices});
    SGD one(reference.parameters(), {.lr = 1.0 / 64}), many(net.parameters(), {.lr = 1.0 / 64});
    for (std::int64_t step = 0; step < 8; ++step) {
      std::vector<std::int64_t> words;
      for (std::int64_t i = 0; i < 11; ++i) words.push_back((i * i + step) % 9);
      const std::pair data{from_data(words, {11}), counting({11, 2}, Device::cpu(), static_cast<double>(step))};
      one.zero_grad();
      reference(data).sum().backward();
      one.step();
      Tensor sum;
      {
        const Aside aside(devices);
        sum = net(data).sum();
        if (step % 2 == 1) {
          sum.backward();
          sum = Tensor();
        }
        if (step % 4 == 1) many.step(), many.zero_grad();
      }
      if (sum.defined()) sum.backward();
      if (step % 4 != 1) {
        const Aside aside(devices);  // reads what the default streams have
        many.step(), many.zero_grad();
      }
    }
    CHECK(largest_difference(net.module().table.weight.tensor(), reference.table.weight.tensor()) == 0);
    nothing_to_report(devices);
  }
}

TEST_CASE("rows that are added to on another stream stay until they have been read") {
  for (const auto& devices : device_sets()) {
    for (const bool dense : {false, true}) {
      Embedding table(9, 2, {.sparse = true});
      table.to(DType::f64);
      table.to(devices[0]);
      const DataParallel net(table, {.devices = devices});
      const Tensor words = from_data(std::vector<std::int64_t>{1, 2, 3, 4}, {4});
      net(words).sum().backward();
      Tensor again = net(words).sum();
      if (dense) again = again + table.weight.on(devices[0]).sum();
      {
        const Aside aside(devices);
        again.backward();
      }
      if (dense) {
        CHECK(values(table.weight.grad()) == Doubles{1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1});
      } else {
        CHECK(values(table.weight.sparse_grad().values) == Doubles(16, 1));
      }
      nothing_to_report(devices);
    }
  }
}
