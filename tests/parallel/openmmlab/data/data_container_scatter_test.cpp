// DataContainer on its way to the devices.
#include "lockstep/parallel/openmmlab/data/data_container.h"
#include "lockstep/parallel/openmmlab/data/data_sample.h"
#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "lockstep/tensor/data/collate.h"
#include "lockstep/tensor/data/data_loader.h"
#include "lockstep/tensor/nn/packed_sequence.h"
#include "parallel/ddp/support.h"
#include "support/devices.h"

using namespace parallel_test;
using support::device_at;
using support::device_name;
using support::devices_at;
using support::first_devices;

namespace {

using Images = DataContainer<Tensor>;

struct ScatteredSample {
  Images image, truth, kept;
  void fields(auto& f) { f(image, truth, kept); }
};

// Images of 1 by (i + 1) pixels, all i; i + 1 boxes; a tensor that stays.
std::vector<ScatteredSample> samples(int count) {
  std::vector<ScatteredSample> all;
  for (int i = 0; i < count; ++i)
    all.push_back({Images(full({1, 1, i + 1}, i, {.dtype = DType::f64}), {.stack = true, .padding_value = -1}),
                   Images(counting({i + 1, 4}, Device::cpu(), i)), Images(counting({i + 1}), {.cpu_only = true})});
  return all;
}

struct Labelled {
  Images image;
  Tensor label;
  void fields(auto& f) { f(image, label); }
};

struct ScatteredAnswer {
  Tensor y;
  ScatteredSample sample;
};
// Gives back what it is given.
struct Keeps : Module<Keeps> {
  Parameter weight{counting({1})};
  ScatteredAnswer forward(const ScatteredSample& sample) const {
    return {sample.image.stacked(0) * weight.on(sample.image.stacked(0).device()), sample};
  }
  void members(Members& m) override { m("weight", weight); }
};

// What a container's tensors are inside of.
using Nested = std::map<std::string, std::vector<Tensor>>;

}  // namespace

TEST_CASE("each device gets its group") {
  for (const auto& devices : device_sets()) {
    const std::size_t groups = std::min<std::size_t>(devices.size(), 3);
    const auto all = samples(static_cast<int>(2 * groups - 1));
    const ScatteredSample batch = collate(all, 2);
    const std::vector<ScatteredSample> pieces = scatter(batch, devices);
    REQUIRE(pieces.size() == groups);
    for (std::size_t i = 0; i < groups; ++i) {
      CAPTURE(devices, i);
      const auto& [image, truth, kept] = pieces[i];
      const std::size_t size = i + 1 < groups ? 2 : 1;
      REQUIRE((image.group_count() == 1 && truth.group_count() == 1 && kept.group_count() == 1));
      CHECK(image.stacked().device() == devices[i]);
      CHECK(values(image.stacked()) == values(batch.image.stacked(i)));
      REQUIRE((truth.list().size() == size && kept.list().size() == size));
      for (std::size_t k = 0; k < size; ++k) {
        CHECK(truth.list()[k].device() == devices[i]);
        CHECK(values(truth.list()[k]) == values(all[2 * i + k].truth.data()));
        CHECK(kept.list()[k].identity() == all[2 * i + k].kept.data().identity());
      }
      CHECK(image.padding_value() == -1);
    }
  }
}

TEST_CASE("tensors of a group are moved wherever they are in it, and of any shape") {
  support::needs_devices(3);
  const Tensor matrix = counting({3, 2});
  const Tensor there = counting({2}, device_at(1), 50);
  const Nested first{{"a", {counting({2}), tensor({9}, {})}}, {"b", {}}};
  const Nested second{{"a", {matrix.t(), counting({0, 4}), there}}};
  const auto batch = DataContainer<Nested>::of_lists({{first}, {second, first}});
  const std::uint64_t before = detail::moved_bytes();
  const auto pieces = scatter(batch, devices_at({2, 1}));
  CHECK(detail::moved_bytes() - before == 8 * (3 + 6 + 3));  // what is there already does not move
  REQUIRE(pieces.size() == 2);
  CHECK(values(pieces[0].list()[0].at("a")[0]) == Doubles{1, 2});
  CHECK(values(pieces[0].list()[0].at("a")[1]) == Doubles{9});
  CHECK(pieces[0].list()[0].at("a")[1].rank() == 0);
  CHECK(pieces[0].list()[0].at("a")[1].device() == device_at(2));
  const std::vector<Tensor>& moved = pieces[1].list()[0].at("a");
  CHECK(values(moved[0]) == Doubles{1, 3, 5, 2, 4, 6});
  CHECK(moved[1].shape() == Shape{0, 4});
  CHECK(moved[2].identity() == there.identity());
  for (const Tensor& x : moved) CHECK(x.device() == device_at(1));
  CHECK(pieces[1].list()[1].at("b").empty());

  // What is no tensor goes along.
  const auto numbers = scatter(DataContainer<int>::of_lists({{1, 2}, {3}}), first_devices(3));
  REQUIRE(numbers.size() == 2);
  CHECK(numbers[1].list() == std::vector{3});
}

TEST_CASE("to cpu a container is unwrapped and stays as it is") {
  const Tensor here = counting({2}), there = counting({3}, device_at(1));
  const auto pieces = scatter(std::tuple(Images::of_lists({{here, there}}), 5), {Device::cpu()});
  REQUIRE(pieces.size() == 1);
  CHECK(std::get<0>(pieces[0]).list()[0].identity() == here.identity());
  CHECK(std::get<0>(pieces[0]).list()[1].identity() == there.identity());
}

TEST_CASE("a container of a sample goes to one device as a whole") {
  const auto pieces = scatter(Images(counting({6, 2})), devices_at({2, 1, 0}));
  REQUIRE(pieces.size() == 1);
  CHECK_FALSE(pieces[0].is_batch());
  CHECK(pieces[0].data().device() == device_at(2));
  CHECK(pieces[0].data().shape() == Shape{6, 2});
  const Images kept(counting({2}), {.cpu_only = true});
  CHECK(scatter(kept, first_devices(2))[0].data().identity() == kept.data().identity());
}

TEST_CASE("tensors beside containers are divided by the containers' groups") {
  struct Data {
    std::size_t size() const { return 18; }
    Labelled get(std::int64_t i) const {
      return {Images(full({1, 1, 2}, static_cast<double>(i), {.dtype = DType::f64}), {.stack = true}),
              full({}, static_cast<double>(i), {.dtype = DType::f64})};
    }
  };
  // 0 for every sample whose label is its own.
  struct Compares : Module<Compares> {
    Parameter weight{counting({1})};
    Tensor forward(const Labelled& batch) const {
      const Tensor images = batch.image.stacked();
      return images.select(3, 0).reshape({-1}) * weight.on(images.device()) - batch.label;
    }
    void members(Members& m) override { m("weight", weight); }
  };
  // The last batches have 6 samples in groups of 4 and 2, or 2 in one group.
  for (const std::int64_t batch_size : {12, 16}) {
    DataLoader loader(Data{}, {.batch_size = batch_size}, Collate{.samples_per_device = 4});
    const MMDataParallel net(Compares{}, {.devices = first_devices(4)});
    const DataParallel plain(Compares{}, {.devices = first_devices(4)});
    const MMDataParallel on_cpu(Compares{}, {.devices = {}});
    std::int64_t seen = 0;
    for (const Labelled& batch : loader) {
      for (const Tensor& differences : {net(batch), plain(batch)}) {
        CHECK(values(differences) == Doubles(static_cast<std::size_t>(batch.label.size(0))));
        seen += differences.size(0);
      }
      if (batch.image.group_count() == 1) CHECK(values(on_cpu(batch)) == Doubles(2));
    }
    CHECK(seen == 2 * 18);
  }
}

TEST_CASE("targets go to the devices of their inputs' groups") {
  struct Sums : Module<Sums> {
    Parameter weight{counting({1})};
    Tensor forward(const Images& images) const {
      return images.stacked().reshape({-1}) * weight.on(images.stacked().device());
    }
    void members(Members& m) override { m("weight", weight); }
  };
  const DataParallel net(Sums{}, {.devices = first_devices(3)});
  const auto loss = [](const Tensor& output, const Tensor& target) { return mean(square(output - target)); };
  const Images groups = Images::of_stacks({counting({4}), counting({2}, Device::cpu(), 5)});
  CHECK(net.reduce_with(loss, std::tuple(groups), std::tuple(counting({6}))).item<double>() == 0);
  CHECK(missing(
            message_of<InvalidArgument>([&] { net.reduce_with(loss, std::tuple(groups), std::tuple(counting({7}))); }),
            {"add up to 7", "[4, 2, 0]"}) == "");

  struct Plain : Module<Plain> {
    Parameter weight{counting({1})};
    Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
    void members(Members& m) override { m("weight", weight); }
  };
  const DataParallel other(Plain{}, {.devices = first_devices(2)});
  const auto of_groups = [](const Tensor& output, const Images& target) {
    return mean(square(output - target.stacked()));
  };
  CHECK(missing(message_of<InvalidArgument>(
                    [&] { other.reduce_with(of_groups, std::tuple(counting({6})), std::tuple(groups)); }),
                {"[reduce_with] expected targets divided as the inputs are", "4 of the targets for 3"}) == "");
  const Images even = Images::of_stacks({counting({3}), counting({3}, Device::cpu(), 4)});
  CHECK(other.reduce_with(of_groups, std::tuple(counting({6})), std::tuple(even)).item<double>() == 0);
}

TEST_CASE("the groups are as many as the pieces of what is beside them") {
  support::needs_devices(4);
  const Images batch = Images::of_lists({{counting({2})}, {counting({5})}});
  CHECK(scatter(std::pair(batch, counting({2})), first_devices(2)).size() == 2);
  CHECK(scatter(std::pair(batch, counting({2})), first_devices(4)).size() == 2);
  CHECK(scatter(std::pair(counting({2}), batch), first_devices(4), 0, ScatterPolicy::sizes({1, 1, 0, 0})).size() == 2);
  const auto error_of = [](const auto& value, const std::vector<Device>& devices, const ScatterPolicy& policy = {}) {
    return message_of<InvalidArgument>([&] { scatter(value, devices, 0, policy); });
  };
  const std::uint64_t before = detail::moved_bytes();
  for (const std::int64_t count : {4, 9}) {
    const std::string other = cat("f64[", count, "] on cpu");
    CHECK(missing(error_of(std::pair(batch, counting({count})), first_devices(3)),
                  {"[scatter] expected tensors beside a container with groups of 1 + 1 samples to have 2 elements",
                   other}) == "");
    CHECK(missing(error_of(std::pair(counting({count}), batch), first_devices(3)), {"1 + 1 samples", other}) == "");
  }
  const Images pairs = Images::of_lists({{counting({1}), counting({1})}, {counting({1})}});
  CHECK(missing(error_of(std::pair(batch, pairs), first_devices(2)), {"the same groups", "1 + 1 and 2 + 1 samples"}) ==
        "");
  CHECK(missing(error_of(std::pair(pairs, counting({3})), first_devices(2), ScatterPolicy::sizes({1, 2})),
                {"a policy that divides as the containers", "2 + 1 samples", "1 + 2"}) == "");
  CHECK(missing(error_of(std::pair(batch, Images::of_lists({{counting({1})}}, {.cpu_only = true})), first_devices(2)),
                {"2 pieces", "1 piece on [" + device_name(0) + "] from a container divided into 1 parts"}) == "");
  CHECK(missing(error_of(std::pair(batch, Images(counting({1}))), first_devices(2)), {"2 pieces", "1 piece"}) == "");
  CHECK(missing(error_of(std::pair(Images(counting({1})), counting({4})), first_devices(2)), {"1 piece", "2 pieces"}) ==
        "");
  CHECK(missing(error_of(batch, first_devices(1)), {"divided into 1 to 1 parts", "got 2", "samples_per_device"}) == "");
  CHECK(missing(error_of(batch, {Device::cpu()}), {"got 2", "samples_per_device"}) == "");
  CHECK(detail::moved_bytes() == before);
  // One device, or one group, takes everything as it is.
  const Images one = Images::of_lists({{counting({1}), counting({1})}});
  for (const auto& devices : {first_devices(1), first_devices(3), std::vector{Device::cpu()}})
    CHECK(scatter(std::pair(one, counting({5})), devices)[0].second.size(0) == 5);
}

TEST_CASE("gradients flow back through a container, twice") {
  const auto devices = devices_at({1, 2});
  const Tensor a = counting({2, 3}, device_at(1)).set_requires_grad();
  const Tensor b = counting({2, 3}, Device::cpu(), 7).set_requires_grad();
  const Tensor c = tensor({3}, {}).set_requires_grad();
  const auto pieces = scatter(Images::of_lists({{a, c}, {b}}), devices);
  Tensor loss;
  for (std::size_t i = 0; i < 2; ++i)
    for (const Tensor& x : pieces[i].list()) {
      const Tensor part = sum(x * x * x).to(Device::cpu());
      loss = loss.defined() ? loss + part : part;
    }
  const std::vector<Tensor> first = grad(loss, {a, b, c}, {.create_graph = true});
  for (const auto& [gradient, source] : {std::pair(first[0], a), std::pair(first[1], b), std::pair(first[2], c)}) {
    CHECK(gradient.device() == source.device());
    CHECK(largest_difference(gradient.detach(), source.detach() * source.detach() * 3) == 0);
  }
  const std::vector<Tensor> second = grad(sum(first[0]).to(Device::cpu()) + sum(first[1]) + first[2], {a, b, c});
  CHECK(largest_difference(second[0], a.detach() * 6) == 0);
  CHECK(largest_difference(second[1], b.detach() * 6) == 0);
  CHECK(largest_difference(second[2], c.detach() * 6) == 0);
}

TEST_CASE("walks find what is in a container unless it is cpu_only") {
  support::needs_devices(5);
  ScatteredSample batch = collate(samples(3), 2);
  int found = 0;
  for_each_tensor(std::as_const(batch), [&](const Tensor&) { ++found; });
  CHECK(found == 2 + 3);
  for_each_tensor(batch, [](Tensor& x) { x = x.to(device_at(3)); });
  CHECK(batch.image.stacked(1).device() == device_at(3));
  CHECK(batch.truth.list(0)[1].device() == device_at(3));
  CHECK(batch.kept.list(0)[1].device() == Device::cpu());

  // So do the hooks of modules …
  Keeps module;
  module.to(device_at(3));
  std::size_t seen = 0;
  module.register_forward_pre_hook([&](const ModuleBase&, std::span<const Tensor> inputs) { seen = inputs.size(); });
  module(batch);
  CHECK(seen == 5);

  // … the loader on the way to its device, and the ranks on the way to theirs.
  struct Data {
    std::size_t size() const { return 3; }
    ScatteredSample get(std::int64_t index) const { return samples(3)[static_cast<std::size_t>(index)]; }
  };
  DataLoader loader(Data{}, {.batch_size = 3, .device = device_at(4)}, Collate{.samples_per_device = 2});
  for (const ScatteredSample& loaded : loader) {
    CHECK(loaded.image.stacked(1).device() == device_at(4));
    CHECK(loaded.truth.list(0)[1].device() == device_at(4));
    CHECK(loaded.kept.list(0)[1].device() == Device::cpu());
    CHECK(values(loaded.image.stacked(0)) == Doubles{0, -1, 1, 1});
  }
  const auto devices_of_rank = run_ranks(2, [](Communicator& communicator) {
    const DistributedDataParallel net(Keeps{}, communicator);
    const ScatteredSample seen_there = net.forward(collate(samples(3), 2)).sample;
    return std::vector{seen_there.image.stacked(1).device(), seen_there.kept.list(0)[0].device()};
  });
  CHECK(devices_of_rank ==
        std::vector<std::vector<Device>>{{device_at(0), Device::cpu()}, {device_at(1), Device::cpu()}});
}

TEST_CASE("packed sequences beside containers are divided as these are, and in containers are moved") {
  support::needs_devices(2);
  const auto sentences = [](std::vector<std::int64_t> lengths) {
    std::vector<Tensor> list;
    for (const std::int64_t length : lengths) list.push_back(counting({length}));
    return pack_sequence(list, false);
  };
  const auto images = DataContainer<Tensor>::of_lists({{counting({1}), counting({1}), counting({1})}, {counting({1})}});
  const auto beside = scatter(std::pair(images, sentences({2, 1, 4, 3})), first_devices(2));
  REQUIRE(beside.size() == 2);
  CHECK(beside[0].second.lengths() == std::vector<std::int64_t>{2, 1, 4});
  CHECK(beside[1].second.lengths() == std::vector<std::int64_t>{3});
  CHECK(beside[1].second.data.device() == device_at(1));
  CHECK(missing(message_of<InvalidArgument>([&] {
                  scatter(std::pair(images, sentences({2, 1, 4})), first_devices(2));
                }),
                {"expected packed sequences beside", "3 + 1 samples to be 4, got 3 packed sequences"}) == "");

  const auto inside = DataContainer<PackedSequence>::of_lists({{sentences({1, 2})}, {sentences({3})}});
  const auto moved = scatter(inside, devices_at({1, 0}));
  REQUIRE(moved.size() == 2);
  CHECK(moved[0].list()[0].data.device() == device_at(1));
  CHECK(moved[0].list()[0].lengths() == std::vector<std::int64_t>{1, 2});
  CHECK(moved[1].list()[0].data.device() == device_at(0));
}
