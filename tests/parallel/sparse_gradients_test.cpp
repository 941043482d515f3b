// Sparse gradients of a DataParallel: the rows of the replicas, one replica after another, home first.
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/sgd.h"
#include "lockstep/tensor/optim/sparse_adam.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

using Indices = std::vector<std::int64_t>;
constexpr std::int64_t kRows = 9, kSize = 2;

Tensor indices(const Indices& at, const Shape& shape) { return from_data(at, shape); }

// Words [batch, 2] to rows, times a factor given beside them.
struct Words : Module<Words> {
  Embedding table, unused{3, 2, {.sparse = true}};
  Parameter scale{tensor({3, 5}, {2})};
  explicit Words(bool sparse) : table(kRows, kSize, {.padding_index = 8, .sparse = sparse}) {
    table.to(DType::f64);
    table.weight.assign(counting({kRows, kSize}));
  }
  Tensor forward(const std::pair<Tensor, Tensor>& in) const {
    return table(in.first) * in.second * scale.on(in.second.device()).detach();
  }
  void members(Members& m) override { m("table", table), m("unused", unused), m("scale", scale); }
};
// A batch of word pairs that differ per sample, and factors that are distinct integers.
std::pair<Tensor, Tensor> batch(std::int64_t size, std::int64_t seed) {
  Indices words;
  for (std::int64_t i = 0; i < 2 * size; ++i) words.push_back((i * 5 + seed * 3 + i * i) % kRows);
  return {indices(words, {size, 2}), counting({size, 2, kSize}, Device::cpu(), 1 + static_cast<double>(seed))};
}

}  // namespace

TEST_CASE("sparse gradients of replicas are exact, for every device set and batch size, step after step") {
  for (const auto& devices : device_sets()) {
    const Words plain(false);
    auto net = DataParallel(Words(true), {.devices = devices});
    const Parameter& weight = net.module().table.weight;
    std::int64_t rows = 0, seed = 0;
    for (const std::int64_t size : {7, 1, 16, 3, 9, 8, 2}) {
      const auto data = batch(size, ++seed);
      plain(data).sum().backward();
      net(data).sum().backward();
      const SparseGradient got = weight.sparse_grad();
      REQUIRE(got.defined());
      CHECK(got.indices.count() == (rows += 2 * size));
      CHECK(got.values.device() == devices[0]);
      CHECK(values(got.to_dense()) == values(plain.table.weight.grad()));
    }
    CHECK_FALSE(net.module().unused.weight.sparse_grad().defined());  // undefined, not empty
    CHECK_FALSE(net.module().unused.weight.grad().defined());
    CHECK_FALSE(net.module().scale.grad().defined());
    net.zero_grad();
    CHECK_FALSE(weight.sparse_grad().defined());
  }
}

TEST_CASE("rows stand replica by replica, home first, and move between devices once") {
  support::needs_devices(5);
  for (const auto& devices : {first_devices(1), first_devices(2), first_devices(3), first_devices(5),
                              devices_at({3, 1}), devices_at({4, 0, 2})}) {
    const auto net = DataParallel(Words(true), {.devices = devices});
    const auto count = static_cast<std::int64_t>(devices.size());
    Indices words;  // sample i has the words i and i + 1
    for (std::int64_t i = 0; i < count; ++i) words.push_back(i), words.push_back(i + 1);
    for (int run = 0; run < 5; ++run) {
      net.module().table.weight.zero_grad();
      net(std::pair{indices(words, {count, 2}), counting({count, 2, kSize})}).sum().backward();
      const SparseGradient got = net.module().table.weight.sparse_grad();
      CHECK(got.indices.to_vector<std::int64_t>() == words);
      Doubles expected = values(counting({2 * count, kSize}));
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= i % 2 ? 5 : 3;
      CHECK(values(got.values) == expected);
    }
    // 2 rows of 2 f64 and 2 indices from each other replica.
    CHECK(net.stats().last.reduce.bytes == static_cast<std::uint64_t>(count - 1) * (2 * kSize * 8 + 2 * 8));
  }
}

TEST_CASE("rows of some replicas and a matrix of another become a matrix") {
  support::needs_devices(5);
  struct Mixed : Module<Mixed> {
    Parameter weight{counting({kRows, kSize})};
    Device dense;
    explicit Mixed(Device d) : dense(d) {}
    Tensor forward(const Tensor& at) const {
      return embedding(weight.on(at.device()), at, {.sparse = at.device() != dense});
    }
    void members(Members& m) override { m("weight", weight); }
  };
  const Indices words{0, 3, 3, 8, 1, 0};
  for (const auto& devices : {first_devices(2), first_devices(3), devices_at({4, 0, 2})})
    for (const Device dense : devices) {
      auto net = DataParallel(Mixed(dense), {.devices = devices});
      const Tensor factor = counting({6, kSize});
      for (int run = 1; run < 3; ++run) {
        (net(indices(words, {6})) * factor.to(devices[0])).sum().backward();
        Tensor expected = index_add(zeros({kRows, kSize}, {.dtype = DType::f64}), 0, indices(words, {6}), factor);
        CHECK(values(net.module().weight.grad()) == values(expected * run));
      }
      // Rows alone, on top of the matrix; and the other way round.
      net.module().dense = Device::cpu();
      const Doubles before = values(net.module().weight.grad());
      net(indices(words, {6})).sum().backward();
      CHECK_FALSE(net.module().weight.sparse_grad().defined());
      const Doubles after = values(net.module().weight.grad());
      CHECK(after[0] == before[0] + 2);
      net.zero_grad();
      net(indices(words, {6})).sum().backward();
      CHECK(net.module().weight.sparse_grad().indices.to_vector<std::int64_t>() == words);
      net.module().dense = dense;
      net(indices(words, {6})).sum().backward();
      CHECK(values(net.module().weight.grad())[0] == 4);
    }
}

TEST_CASE("training with sparse gradients on several devices is training") {
  for (const auto& devices : device_sets()) {
    const Words plain(false);
    auto net = DataParallel(Words(true), {.devices = devices});
    SGD one({plain.table.weight}, {.lr = 1.0 / 64}), many({net.module().table.weight}, {.lr = 1.0 / 64});
    for (std::int64_t step = 1; step < 5; ++step) {
      const auto data = batch(step * 3, step);
      one.zero_grad(), many.zero_grad();
      plain(data).sum().backward();
      net(data).sum().backward();
      one.step(), many.step();
      CHECK(values(net.module().table.weight.tensor()) == values(plain.table.weight.tensor()));
    }
    SparseAdam adam({net.module().table.weight});
    many.zero_grad();
    net(batch(5, 2)).sum().backward();
    CHECK_NOTHROW(adam.step());
  }
}

TEST_CASE("no device has a matrix for gradients that are rows, also beside dense ones") {
  struct Net : Module<Net> {
    Embedding table{100'000, 8, {.sparse = true}};
    Linear head{8, 1};
    Tensor forward(const Tensor& at) const { return head(table(at)); }
    void members(Members& m) override { m("table", table), m("head", head); }
  };
  const auto devices = first_devices(3);
  auto net = DataParallel(Net{}, {.devices = devices});
  const Tensor at = indices({1, 99'999, 5, 1, 7, 3}, {6});
  net(at).sum().backward();
  const std::size_t bytes = net.module().table.weight.tensor().bytes();
  for (const Device device : devices) {
    synchronize(device);
    CHECK(memory_stats(device).in_use_bytes < bytes + bytes / 2);  // the weight
  }
  CHECK(net.module().head.weight.grad().defined());
}
