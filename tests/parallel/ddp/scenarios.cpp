#include "parallel/ddp/scenarios.h"

#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"
#include "lockstep/tensor/nn/layers.h"
#include "support/watched.h"

namespace parallel_test {
namespace {

constexpr int kAccumulate = 3;
const int kSteps = support::watched() ? 6 : 20;

// The second layer is the first, transposed.
struct Tied : Module<Tied> {
  Parameter weight{noise({5, 3}, 7)};
  Tensor forward(const Tensor& x) const {
    const Tensor w = weight.on(x.device());
    return matmul(tanh(matmul(x, w.t())), w) - x;
  }
  void members(Members& m) override { m("weight", weight), m("again", weight); }
};

struct Heads : Module<Heads> {
  Affine shared{3, 4, 1}, left{4, 2, 2}, right{4, 2, 3};
  std::vector<Tensor> forward(const Tensor& x, bool go_left, bool go_right) const {
    const Tensor h = tanh(shared(x));
    std::vector<Tensor> heads;
    if (go_left) heads.push_back(left(h));
    if (go_right) heads.push_back(right(h));
    return heads;
  }
  void members(Members& m) override { m("shared", shared), m("left", left), m("right", right); }
};

// Rows of a table, by the numbers of the batch.
struct Words : Module<Words> {
  Embedding table{7, 3, {.sparse = true}};
  Affine head{3, 2, 5};
  Words() {
    table.to(DType::f64);
    table.weight.assign(noise({7, 3}, 11));
  }
  Tensor forward(const Tensor& x) const { return head(table((abs(x.select(1, 0)) * 7.0).to(DType::i64))); }
  void members(Members& m) override { m("table", table), m("head", head); }
};

// Norms of the whole batch, among the ranks.
struct Normed : Module<Normed> {
  Affine first{3, 4, 1}, last{4, 2, 2};
  BatchNorm1d norm{4}, other;
  explicit Normed(std::optional<double> momentum = 0.1) : other(2, {.momentum = momentum}) {}
  Tensor forward(const Tensor& x) const { return other(last(tanh(norm(first(x))))) + 1.0; }
  void members(Members& m) override { m("first", first), m("last", last), m("norm", norm), m("other", other); }
};

// `step(net, x, number, optimizer)` does the whole step: with the module itself on all rows, with its wrapper on a
// rank's share.
template <class M, class Step>
Scenario scenario(std::string name, DType dtype, DistributedDataParallelOptions options, std::function<M()> make,
                  double momentum, Step step) {
  Scenario result;
  result.name = std::move(name);
  result.tolerance = dtype == DType::f64 ? 1e-10 : 1e-4;
  result.whole = [=](int ranks) {
    const Device device = accelerators()[0];
    M net = make();
    net.to(dtype);
    net.to(device);
    SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = momentum});
    for (int i = 0; i < kSteps; ++i) step(net, batch(i, ranks, dtype, device), i, optimizer);
    return all_parameters(net);
  };
  result.with_hook = [=](Communicator& communicator, const HookMaker& make_hook) {
    M module = make();
    module.to(dtype);
    if constexpr (std::is_same_v<M, Normed>) convert_sync_batchnorm(module, communicator);
    DistributedDataParallel<M> net(std::move(module), communicator, options);
    if (make_hook) net.register_comm_hook(make_hook());
    SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = momentum});
    for (int i = 0; i < kSteps; ++i)
      step(net, share(batch(i, communicator.size(), dtype, communicator.device()), communicator.rank()), i, optimizer);
    return all_parameters(net.module());
  };
  result.rank = [run = result.with_hook](Communicator& communicator) { return run(communicator, {}); };
  return result;
}

constexpr auto plain = [](const auto& net, const Tensor& x, int, Optimizer& optimizer) {
  optimizer.zero_grad();
  loss_of(net(x)).backward();
  optimizer.step();
};

}  // namespace

std::vector<Scenario> scenarios() {
  DistributedDataParallelOptions copies = small_buckets(), unused = small_buckets(), fixed = small_buckets(),
                                 twice = small_buckets(), twice_fixed = small_buckets();
  copies.gradient_as_bucket_view = false;
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  twice.backwards_per_forward = twice_fixed.backwards_per_forward = 2;
  twice_fixed.static_graph = true;
  const std::pair<const char*, DistributedDataParallelOptions> variants[] = {{"one bucket", {}},
                                                                             {"small buckets", small_buckets()},
                                                                             {"copies", copies},
                                                                             {"unused", unused},
                                                                             {"static", fixed}};

  std::vector<Scenario> all;
  for (const auto& [name, options] : variants) {
    const std::function<Mlp()> make = [] { return Mlp{}; };
    for (const DType dtype : {DType::f64, DType::f32})
      all.push_back(scenario<Mlp>(cat("mlp, ", name, ", ", dtype), dtype, options, make, 0.9, plain));
    all.push_back(scenario<Mlp>(cat("accumulation, ", name), DType::f64, options, make, 0.9,
                                [](const auto& net, const Tensor& x, int i, Optimizer& optimizer) {
                                  if (i % kAccumulate == kAccumulate - 1 || i == kSteps - 1) {
                                    loss_of(net(x)).backward();
                                    optimizer.step();
                                    optimizer.zero_grad();
                                  } else {
                                    [[maybe_unused]] const auto scope = hold(net);
                                    loss_of(net(x)).backward();
                                  }
                                }));
  }
  for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()})
    all.push_back(scenario<Normed>(
        cat("norms, momentum ", momentum.value_or(0)), DType::f64, small_buckets(), [=] { return Normed(momentum); },
        0.5, plain));
  all.push_back(scenario<Tied>(
      "tied", DType::f64, small_buckets(), [] { return Tied{}; }, 0.9, plain));
  all.push_back(scenario<Words>(
      "rows", DType::f64, small_buckets(), [] { return Words{}; }, 0, plain));
  all.push_back(scenario<Mlp>(
      "frozen", DType::f64, small_buckets(),
      [] {
        Mlp net;
        net.first.set_requires_grad(false);
        return net;
      },
      0.9, plain));
  for (const bool view : {true, false}) {
    unused.gradient_as_bucket_view = view;
    all.push_back(scenario<Heads>(
        cat("branches, ", view ? "views" : "copies"), DType::f64, unused, [] { return Heads{}; }, 0.9,
        [](const auto& net, const Tensor& x, int i, Optimizer& optimizer) {
          optimizer.zero_grad();
          loss_of(net(x, i % 3 != 1, i % 3 == 1)[0]).backward();
          optimizer.step();
        }));
  }
  for (const auto& [name, options] :
       {std::pair("several backwards", twice), {"several backwards, static", twice_fixed}})
    all.push_back(scenario<Heads>(
        name, DType::f64, options, [] { return Heads{}; }, 0.9,
        [](const auto& net, const Tensor& x, int, Optimizer& optimizer) {
          optimizer.zero_grad();
          const std::vector<Tensor> heads = net(x, true, true);
          loss_of(heads[0]).backward({}, {.retain_graph = true});
          loss_of(heads[1]).backward();
          optimizer.step();
        }));
  for (Scenario& each : rank_scenarios()) all.push_back(std::move(each));
  for (Scenario& each : join_scenarios()) all.push_back(std::move(each));
  return all;
}

}  // namespace parallel_test
