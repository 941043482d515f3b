// DataParallel with graphs: inference of a replica is one launch, with the bits of an ordinary call.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/quantize_linears.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

using Floats = std::vector<float>;

std::vector<Device> three() { return support::devices_at({2, 0, 1}); }

Tensor drawn(const Shape& shape, std::uint64_t seed, Device device) {
  manual_seed(seed);
  return randn(shape).to(device);
}

struct GraphedNet : Module<GraphedNet> {
  Linear a{6, 16}, b{16, 3};
  BatchNorm2d norm{4};
  Dropout dropout{0.5};
  Tensor forward(const Tensor& x) const {
    const Tensor y = norm(relu(a(x)).reshape({x.size(0), 4, 2, 2})).reshape({x.size(0), 16});
    return b(dropout(y));
  }
  void members(Members& m) override { m("a", a), m("b", b), m("norm", norm), m("dropout", dropout); }
};

struct Pair {
  Tensor sum;
  std::vector<Tensor> parts;
  void fields(auto& f) { f(sum, parts); }
};
// Structures, a result that is an argument, one that is a parameter, and one whose elements lie on others.
struct Structures : Module<Structures> {
  Linear layer{4, 4};
  Pair forward(const std::pair<Tensor, Tensor>& in, const std::optional<Tensor>& bias) const {
    Tensor sum = layer(in.first) + in.second;
    if (bias) sum = sum + *bias;
    const Device device = sum.device();
    return {sum.t().t(), {in.first, layer.weight.on(device), sum.select(1, 0).unsqueeze(1).expand(sum.shape())}};
  }
  void members(Members& m) override { m("layer", layer); }
};

// Does what a function says beside its product.
struct Odd : Module<Odd> {
  Linear layer{3, 2};
  Buffer counter{zeros({})};
  std::function<void(const Odd&, const Tensor&)> act;
  Tensor forward(const Tensor& x) const {
    act(*this, x);
    return layer(x);
  }
  void members(Members& m) override { m("layer", layer), m("counter", counter); }
};

struct Numbered {
  Tensor y;
  std::int64_t rows;
  using gathered = std::pair<Tensor, std::vector<std::int64_t>>;
};
struct WithNumber : Module<WithNumber> {
  Linear layer{3, 2};
  Tensor forward(const Tensor& x, double scale) const { return layer(x) * scale; }
  void members(Members& m) override { m("layer", layer); }
};

struct Launches {
  int graphs = fake_cuda::calls_of("cudaGraphLaunch"),
      kernels = fake_cuda::calls_of("cudaLaunchKernel") + fake_cuda::calls_of("cublasLtMatmul"),
      captures = fake_cuda::calls_of("cudaStreamBeginCapture");
  Launches since() const {
    const Launches now;
    Launches difference;
    difference.graphs = now.graphs - graphs, difference.kernels = now.kernels - kernels;
    difference.captures = now.captures - captures;
    return difference;
  }
};

std::string rules_broken() {
  std::string text;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) text += to_string(failure) + '\n';
  return text;
}

// The same module and calls, without graphs.
template <class M>
DataParallel<M> plain(const DataParallel<M>& net) {
  return DataParallel<M>(net.module(), {.devices = net.devices(), .dim = net.dim()});
}

}  // namespace

TEST_CASE("graphs: a call is one launch of a graph per device, with the bits of an ordinary one") {
  manual_seed(1);
  auto net = DataParallel(GraphedNet(), {.devices = three(), .graphs = 4});
  net.eval();
  const auto ordinary = plain(net);
  const InferenceMode inference;
  // 7 over three devices: 3, 3, 1. 2: two replicas.
  for (const std::int64_t batch : {6, 7, 2, 1}) {
    INFO(batch);
    const auto replicas = static_cast<int>(batch < 3 ? batch : 3);
    for (std::uint64_t round = 0; round < 4; ++round) {
      const Tensor x = drawn({batch, 6}, 10 + round, net.devices()[0]);
      const Launches before_ordinary;
      const Tensor by_launches = ordinary(x);
      const Launches many = before_ordinary.since();
      const Floats expected = by_launches.to_vector<float>();
      const ReplicaGraphStats before = net.stats().graphs;
      const Launches launches;
      const Tensor y = net(x);
      const Launches made = launches.since();
      const ReplicaGraphStats after = net.stats().graphs;
      CHECK(y.to_vector<float>() == expected);
      const int total = static_cast<int>(after.replayed + after.ordinary - before.replayed - before.ordinary);
      CHECK(total == replicas);
      if (round < 2) continue;
      CHECK(made.graphs == replicas);
      CHECK(many.graphs == 0);
      // Five kernels of each replica are in the graph; a copy in and one out are beside it.
      CHECK(many.kernels - made.kernels == 3 * replicas);
      CHECK(after.replayed - before.replayed == static_cast<std::uint64_t>(replicas));
      CHECK(after.captured == before.captured);
      CHECK(made.captures == 0);
    }
  }
  // Pieces of 2, 3 and 1 rows; the last device had none of 3.
  CHECK(net.stats().graphs.captured == 3 + 3 + 2);
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: results of earlier calls stay as they are") {
  manual_seed(2);
  for (const std::size_t count : {1, 3}) {
    std::vector<Device> devices = three();
    devices.resize(count);
    auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 2});
    net.eval();
    const NoGrad no_grad;
    std::vector<Tensor> results, wholes;
    std::vector<Floats> expected;
    const auto ordinary = plain(net);
    for (std::uint64_t i = 0; i < 5; ++i) {
      Tensor x = drawn({6, 6}, i, devices[0]);
      expected.push_back(ordinary(x).to_vector<float>());
      results.push_back(net(x));
      const std::vector<Tensor> pieces = net.forward_ungathered(x);
      wholes.push_back(pieces[0]);
      x.fill_(9);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      CHECK(results[i].to_vector<float>() == expected[i]);
      const Floats first = wholes[i].to_vector<float>();
      CHECK(first == Floats(expected[i].begin(), expected[i].begin() + static_cast<std::ptrdiff_t>(first.size())));
    }
    CHECK(net.stats().graphs.replayed == 9 * count);
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: changed weights and buffers are in the next result, by the same graphs") {
  manual_seed(3);
  auto net = DataParallel(GraphedNet(), {.devices = three(), .graphs = 4});
  const auto ordinary = plain(net);
  SGD optimizer(net.parameters(), {.lr = 0.1});
  const Tensor x = drawn({7, 6}, 5, net.devices()[0]);
  const auto train = [&] {
    net.train();
    optimizer.zero_grad();
    net(x).sum().backward();  // moves the running statistics, too
    optimizer.step();
    net.eval();
  };
  const std::vector<std::function<void()>> changes{[] {},
                                                   [] {},
                                                   train,
                                                   train,
                                                   [&] { net.named_parameters()[1].parameter.assign(ones({16})); },
                                                   [&] {
                                                     const GraphedNet other;
                                                     auto state = other.state_dict();
                                                     for (NamedTensor& entry : state)
                                                       entry.name = "module." + entry.name;
                                                     net.load_state_dict(state);
                                                   },
                                                   [&] { net.buffers()[0].tensor().fill_(0.25); },
                                                   [&] { net.train(), net.eval(); },
                                                   [&] {
                                                     const TrainingScope training(false);
                                                     net.train();
                                                     const NoGrad no_grad;
                                                     CHECK(net(x).defined());
                                                     net.eval();
                                                   }};
  net.eval();
  std::vector<Floats> seen;
  for (const auto& change : changes) {
    change();
    const NoGrad no_grad;
    const Floats expected = ordinary(x).to_vector<float>();
    CHECK(net(x).to_vector<float>() == expected);
    seen.push_back(expected);
  }
  for (std::size_t i = 2; i < 7; ++i) CHECK(seen[i] != seen[i - 1]);
  const ReplicaGraphStats stats = net.stats().graphs;
  CHECK(stats.captured == 3);
  CHECK(stats.replayed == 3 * changes.size());  // all but the first, and the one in a TrainingScope
  CHECK(stats.ordinary == 3 + 2 * 3);           // the first, and in training
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: where the memory or the members of the module are others, they are captured anew") {
  manual_seed(4);
  for (const std::size_t count : {1, 3}) {
    std::vector<Device> devices = three();
    devices.resize(count);
    auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 4});
    net.eval();
    const NoGrad no_grad;
    const std::vector<std::function<void()>> changes{
        [&] { net.to(DType::f64); }, [&] { net.to(DType::f32); },
        [&] {
          net.parameters()[0].tensor().set_data(ones({16, 6}, {.device = devices[0]}));
        },
        [&] { net.module().b = Linear(16, 5), net.to(devices[0]), net.eval(); },
        [&] { net.module().dropout = Dropout(0.1), net.eval(); }};
    for (const auto& change : changes) {
      change();
      const auto ordinary = plain(net);
      const ReplicaGraphStats before = net.stats().graphs;
      for (std::uint64_t i = 0; i < 3; ++i) {
        const Tensor x = drawn({7, 6}, i, devices[0]).to(net.parameters()[0].dtype());
        CHECK(net(x).to_vector<double>() == ordinary(x).to_vector<double>());
      }
      const ReplicaGraphStats after = net.stats().graphs;
      INFO(after.why);
      CHECK(after.ordinary - before.ordinary == count);
      CHECK(after.captured - before.captured == count);
      CHECK(after.replayed - before.replayed == 2 * count);
    }
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: calls that are none are ordinary, and the statistics say why") {
  manual_seed(5);
  const std::vector<Device> devices = three();
  auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 4});
  const auto ordinary = plain(net);
  net.eval();
  const Tensor x = drawn({6, 6}, 1, devices[0]);
  const auto check = [&](const char* why) {
    const ReplicaGraphStats before = net.stats().graphs;
    for (int i = 0; i < 3; ++i) CHECK(net(x).to_vector<float>() == ordinary(x).to_vector<float>());
    const ReplicaGraphStats after = net.stats().graphs;
    CHECK(after.ordinary - before.ordinary == 9);
    CHECK(after.captured == before.captured);
    CHECK_THAT(after.why, Contains(why));
    CHECK_THAT(after.why, Contains(to_string(devices[0]) + ": ") || Contains(to_string(devices[1]) + ": ") ||
                              Contains(to_string(devices[2]) + ": "));
  };
  check("gradients are recorded");
  const NoGrad no_grad;
  {
    const TrainingScope training(true);
    const ReplicaGraphStats before = net.stats().graphs;
    (void)net(x);
    CHECK(net.stats().graphs.ordinary - before.ordinary == 3);
    CHECK_THAT(net.stats().graphs.why, Contains("a module is in training mode"));
  }
  net.train();
  (void)net(x);
  CHECK_THAT(net.stats().graphs.why, Contains("a module is in training mode"));
  net.eval();
  (void)net(x), (void)net(x);
  CHECK(net.stats().graphs.captured == 3);
  std::atomic<int> seen = 0;
  const auto hook = net.module().a.register_forward_hook(
      [&](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor>) { ++seen; });
  check("a module has hooks");
  CHECK(seen == 2 * 9);  // the plain one shares them
  net.module().a.remove_hook(hook);
  {
    std::vector<Tensor> halves;
    for (const Parameter& parameter : net.parameters()) halves.push_back(parameter.tensor() * 0.5);
    const SubstituteScope scope(net.parameters(), halves);
    check("tensors stand in for its parameters");
  }
  const ReplicaGraphStats before = net.stats().graphs;
  for (int i = 0; i < 3; ++i) (void)net(x);
  CHECK(net.stats().graphs.replayed - before.replayed == 6);
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: a forward that cannot be captured is called in the ordinary way, and tried once") {
  const std::vector<Device> devices = three();
  struct Cannot {
    const char* why;
    std::function<void(const Odd&, const Tensor&)> act;
  };
  const Cannot all[] = {
      {"[copy] expected what a capture can record, got one into host memory",
       [](const Odd&, const Tensor& x) { (void)x.sum().item<float>(); }},
      {"got one from host memory that is not pinned",
       [](const Odd&, const Tensor& x) { (void)ones({4}).to(x.device()); }},
      {"its forward writes to an argument", [](const Odd&, const Tensor& x) { Tensor(x).mul_(1); }},
      {"its forward writes to a parameter or buffer",
       [](const Odd& net, const Tensor& x) { Tensor(net.counter.on(x.device())).add_(1); }},
      {"backward",
       [](const Odd& net, const Tensor& x) {
         const GradMode grad(true);
         net.layer(x).sum().backward();
       }},
  };
  for (const Cannot& cannot : all) {
    INFO(cannot.why);
    manual_seed(6);
    Odd odd;
    odd.act = cannot.act;
    auto net = DataParallel(odd, {.devices = devices, .graphs = 4});
    net.eval();
    const auto expected = plain(DataParallel(deep_copy(odd), {.devices = devices}));
    const NoGrad no_grad;
    const Tensor x = drawn({7, 3}, 3, devices[0]);
    for (int i = 0; i < 4; ++i) {
      const Launches launches;
      const Floats found = net(x).to_vector<float>();
      CHECK(launches.since().captures == (i == 1 ? 3 : 0));
      CHECK(found == expected(x).to_vector<float>());
    }
    const ReplicaGraphStats stats = net.stats().graphs;
    CHECK(stats.ordinary == 12);
    CHECK(stats.replayed + stats.captured == 0);
    CHECK_THAT(stats.why, Contains(cannot.why));
    for (const Parameter& parameter : net.parameters())
      if (parameter.grad().defined()) CHECK(parameter.grad().to_vector<float>().size() > 0);
    if (cannot.why == all[3].why) CHECK(net.buffers()[0].tensor().item<float>() == 4);
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: what a capture that fails has cast is not used by the call in its place") {
  manual_seed(16);
  Odd odd;
  odd.act = [](const Odd& net, const Tensor& x) { (void)net.layer(x).sum().item<float>(); };
  auto net = DataParallel(odd, {.devices = three(), .graphs = 4});
  net.eval();
  const auto ordinary = plain(net);
  const NoGrad no_grad;
  const Autocast scope(DType::bf16);
  const Tensor x = drawn({6, 3}, 1, net.devices()[0]);
  for (int i = 0; i < 3; ++i)
    CHECK(net(x).to(DType::f32).to_vector<float>() == ordinary(x).to(DType::f32).to_vector<float>());
  CHECK(net.stats().graphs.ordinary == 9);
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: a conversion of the wrapped module is seen through the wrapper") {
  manual_seed(17);
  auto net = DataParallel(Sequential(Linear(64, 64), ReLU(), Linear(64, 8)), {.devices = {three()[0]}, .graphs = 4});
  net.eval();
  const NoGrad no_grad;
  const Tensor x = drawn({3, 64}, 1, net.devices()[0]);
  for (int i = 0; i < 3; ++i) (void)net(x);
  const Floats before = net(x).to_vector<float>();
  (void)net.parameters();
  (void)net(x);
  CHECK(net.stats().graphs.ordinary == 1);
  CHECK(quantize_linears(net).layers.size() == 2);
  const auto ordinary = plain(net);
  for (int i = 0; i < 3; ++i) {
    const Floats after = net(x).to_vector<float>();
    CHECK(after == ordinary(x).to_vector<float>());
    CHECK(after != before);
  }
  CHECK(net.stats().graphs.captured == 2);
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: structures of tensors go in and come out, others are ordinary") {
  manual_seed(7);
  const std::vector<Device> devices = three();
  auto net = DataParallel(Structures(), {.devices = devices, .graphs = 4});
  const auto ordinary = plain(net);
  net.eval();
  const InferenceMode inference;
  for (int i = 0; i < 6; ++i) {
    const std::pair<Tensor, Tensor> in{drawn({7, 4}, 1, devices[0]), drawn({4, 7}, 2, devices[0]).t()};
    std::optional<Tensor> bias;
    if (i % 2 == 1) bias = drawn({7, 4}, 4, devices[0]);
    const Pair found = net(in, bias), expected = ordinary(in, bias);
    CHECK(found.sum.to_vector<float>() == expected.sum.to_vector<float>());
    REQUIRE(found.parts.size() == expected.parts.size());
    for (std::size_t p = 0; p < found.parts.size(); ++p)
      CHECK(found.parts[p].to_vector<float>() == expected.parts[p].to_vector<float>());
  }
  CHECK(net.stats().graphs.captured == 6);
  CHECK(net.stats().graphs.replayed == 12);

  auto numbers = DataParallel(WithNumber(), {.devices = devices, .graphs = 4});
  numbers.eval();
  const Tensor x = drawn({7, 3}, 1, devices[0]);
  for (const double scale : {1.0, 2.0, 3.0})
    CHECK(numbers(x, scale).to_vector<float>() == plain(numbers)(x, scale).to_vector<float>());
  CHECK(numbers.stats().graphs.ordinary == 9);
  CHECK_THAT(numbers.stats().graphs.why, Contains("an argument is no tensor"));
  const auto expanded = drawn({1, 6}, 1, devices[0]).expand({7, 6});
  auto other = DataParallel(GraphedNet(), {.devices = {devices[0]}, .graphs = 4});
  other.eval();
  for (int i = 0; i < 3; ++i)
    CHECK(other(expanded).to_vector<float>() == other(expanded.contiguous()).to_vector<float>());
  CHECK(other.stats().graphs.replayed == 2);
  CHECK_THAT(other.stats().graphs.why, Contains("elements of an argument lie on others"));
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: images keep their layout, along whichever dimension they are divided") {
  manual_seed(8);
  const std::vector<Device> devices = three();
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    auto net = DataParallel(Conv2d(3, 4, 3), {.devices = devices, .dim = 2, .graphs = 4});
    net.eval();
    const auto ordinary = plain(net);
    const NoGrad no_grad;
    for (std::uint64_t i = 0; i < 3; ++i) {
      const Tensor x = drawn({2, 3, 12, 5}, i, devices[0]).to(format);
      const Tensor y = net(x), expected = ordinary(x);
      CHECK(y.to_vector<float>() == expected.to_vector<float>());
      CHECK(y.strides() == expected.strides());
    }
    CHECK(net.stats().graphs.replayed == 6);
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: a device keeps as many as it may, those that were used last") {
  const std::vector<Device> devices = three();
  auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 2});
  net.eval();
  const NoGrad no_grad;
  const auto twice = [&](std::int64_t batch) {
    const std::uint64_t before = net.stats().graphs.captured;
    for (std::uint64_t i = 0; i < 2; ++i) (void)net(drawn({3 * batch, 6}, i, devices[0]));
    return net.stats().graphs.captured - before;
  };
  CHECK(twice(1) == 3);
  CHECK(twice(2) == 3);
  CHECK(twice(1) == 0);
  CHECK(twice(3) == 3);  // in the place of 2
  CHECK(twice(1) == 0);
  CHECK(twice(2) == 3);
  CHECK_THROWS_WITH(DataParallel(GraphedNet(), {.devices = devices, .graphs = -1}),
                    Contains("[DataParallel] expected a number of graphs, or 0 for none, got -1"));
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: calls on other streams come after each other, and refreshes after them") {
  manual_seed(9);
  const std::vector<Device> devices = three();
  for (const std::size_t count : {1, 3}) {
    const std::vector<Device> some(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(count));
    auto net = DataParallel(GraphedNet(), {.devices = some, .graphs = 2});
    net.eval();
    const auto ordinary = plain(net);
    const NoGrad no_grad;
    std::vector<Stream> streams;
    for (int i = 0; i < 4; ++i) streams.emplace_back(some.back());
    const Stream whole = default_stream(some.back());
    for (std::uint64_t round = 0; round < 2; ++round) {
      std::vector<Tensor> batches, found, expected;
      for (std::uint64_t i = 0; i < 4; ++i) {
        batches.push_back(drawn({6, 6}, 10 * round + i, some[0]));
        expected.push_back(ordinary(batches.back()));
      }
      for (const Stream& stream : streams) stream.wait_for(whole);  // which has the batches
      for (std::size_t i = 0; i < 4; ++i) {
        const StreamScope scope(streams[i]);
        found.push_back(net(batches[i]));
      }
      net.parameters()[0].assign(full({16, 6}, 0.5));  // waits for whoever reads it
      (void)ordinary(batches[0]);                      // refreshes
      for (const Stream& stream : streams) whole.wait_for(stream);
      for (std::size_t i = 0; i < 4; ++i) CHECK(found[i].to_vector<float>() == expected[i].to_vector<float>());
    }
    CHECK(net.stats().graphs.replayed == 7 * count);
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: several threads call one wrapper") {
  manual_seed(10);
  for (const std::size_t count : {1, 3}) {
    std::vector<Device> devices = three();
    devices.resize(count);
    auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 4});
    net.eval();
    const auto ordinary = plain(net);
    std::vector<std::vector<Floats>> found(3), expected(3);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        const InferenceMode inference;
        for (std::uint64_t i = 0; i < 6; ++i) {
          const Tensor x = drawn({3 + static_cast<std::int64_t>(i % 2) * 3, 6}, 10 * t + i, devices[0]);
          found[t].push_back(net(x).to_vector<float>());
          expected[t].push_back(ordinary(x).to_vector<float>());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(found == expected);
    const ReplicaGraphStats stats = net.stats().graphs;
    CHECK(stats.replayed + stats.ordinary == 18 * count);
    const InferenceMode inference;
    for (const std::int64_t batch : {3, 3, 6, 6}) (void)net(drawn({batch, 6}, 1, devices[0]));
    CHECK(net.stats().graphs.captured == 2 * count);
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: replicas that wait for each other are not captured, and still find each other") {
  struct Normalised : Module<Normalised> {
    BatchNorm2d norm{4, {.track_running_stats = false}};
    Tensor forward(const Tensor& z) const {
      const TrainingScope training(true);
      return norm(z);
    }
    void members(Members& m) override { m("norm", norm); }
  };
  const std::vector<Device> devices = three();
  auto net = DataParallel(Normalised(), {.devices = devices, .graphs = 4});
  convert_replica_batchnorm(net);
  net.eval();
  const auto ordinary = plain(net);
  const InferenceMode inference;
  const Tensor x = drawn({7, 4, 3, 3}, 1, devices[0]);
  for (int i = 0; i < 3; ++i) CHECK(net(x).to_vector<float>() == ordinary(x).to_vector<float>());
  CHECK(net.stats().graphs.ordinary == 9);
  CHECK_THAT(net.stats().graphs.why, Contains("expected what a capture can record, got replicas that wait"));
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: autocast and random numbers are those of ordinary calls") {
  manual_seed(12);
  const std::vector<Device> devices = three();
  auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 4});
  net.eval();
  const auto ordinary = plain(net);
  const NoGrad no_grad;
  const Tensor x = drawn({7, 6}, 1, devices[0]);
  for (int i = 0; i < 6; ++i) {
    const Autocast scope(DType::bf16, i % 2 == 1);
    if (i == 4) net.parameters()[0].assign(ones({16, 6}));
    CHECK(net(x).to(DType::f32).to_vector<float>() == ordinary(x).to(DType::f32).to_vector<float>());
  }
  CHECK(net.stats().graphs.replayed == 12);

  struct Noisy : Module<Noisy> {
    Linear layer{6, 3};
    Tensor forward(const Tensor& z) const { return layer(dropout(z, 0.5)) + rand({3}, {.device = z.device()}); }
    void members(Members& m) override { m("layer", layer); }
  };
  auto noisy = DataParallel(Noisy(), {.devices = devices, .graphs = 4});
  noisy.eval();
  const auto expected = plain(noisy);
  std::vector<Floats> a, b;
  manual_seed(13);
  for (int i = 0; i < 4; ++i) a.push_back(noisy(x).to_vector<float>());
  manual_seed(13);
  for (int i = 0; i < 4; ++i) b.push_back(expected(x).to_vector<float>());
  CHECK(a == b);
  CHECK(a[2] != a[3]);
  CHECK(noisy.stats().graphs.replayed == 9);
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: what fails in a capture or a replay leaves the wrapper as it was") {
  manual_seed(14);
  const std::vector<Device> devices = three();
  auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 4});
  net.eval();
  const auto ordinary = plain(net);
  const NoGrad no_grad;
  const Tensor x = drawn({6, 6}, 1, devices[0]);
  const Floats expected = ordinary(x).to_vector<float>();
  (void)net(x);
  fake_cuda::inject({.call = "cudaGraphInstantiate", .nth = 1, .error = 2, .times = 3});
  CHECK(net(x).to_vector<float>() == expected);
  fake_cuda::forget_injections();
  CHECK(net.stats().graphs.ordinary == 6);
  CHECK_THAT(net.stats().graphs.why, Contains("cudaGraphInstantiate"));
  const Tensor other = drawn({3, 6}, 1, devices[0]);
  for (int i = 0; i < 3; ++i) CHECK(net(other).to_vector<float>() == ordinary(other).to_vector<float>());
  CHECK(net.stats().graphs.captured == 3);
  fake_cuda::inject({.call = "cudaGraphLaunch", .nth = 1, .error = 2, .times = 1});
  CHECK_THROWS_AS(net(other), Error);
  fake_cuda::forget_injections();
  for (int i = 0; i < 3; ++i) CHECK(net(other).to_vector<float>() == ordinary(other).to_vector<float>());
  CHECK(net.stats().graphs.captured == 4);
  CHECK(rules_broken() == "");
}

TEST_CASE("graphs: a wrapper and its copy have their own, and their memory goes with them") {
  manual_seed(15);
  const std::vector<Device> devices = three();
  const auto used = [&] {
    std::size_t bytes = 0;
    for (const Device device : devices) {
      synchronize(device);
      empty_cache(device);
    }
    for (const Device device : devices) bytes += fake_cuda::used_bytes(native_ordinal(device));
    return bytes;
  };
  const std::size_t before = used();
  {
    auto net = DataParallel(GraphedNet(), {.devices = devices, .graphs = 4});
    net.eval();
    const NoGrad no_grad;
    const Tensor x = drawn({6, 6}, 1, devices[0]);
    for (int i = 0; i < 3; ++i) (void)net(x);
    auto copy = net;
    CHECK(copy.stats().graphs.replayed == 0);
    for (int i = 0; i < 3; ++i) CHECK(copy(x).to_vector<float>() == net(x).to_vector<float>());
    CHECK(copy.stats().graphs.replayed == 6);
    copy = DataParallel(GraphedNet(), {.devices = devices});
    (void)copy(x);
    CHECK(copy.stats().graphs.ordinary == 0);
  }
  CHECK(used() == before);
  CHECK(rules_broken() == "");
}
