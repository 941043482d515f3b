// Trainings in which ranks have fewer inputs than others, in two epochs. One module that sees the rows of all ranks
// that still have some ends with the same parameters.
#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/scenarios.h"
#include "support/watched.h"

namespace parallel_test {
namespace {

enum class Inputs { one_less, many_less, none_on_first, even };

constexpr int kEpochs = 2;

// How many inputs a rank has in an epoch; in the second one those of the first, the other way round.
int inputs_of(Inputs inputs, int epoch, int rank, int size) {
  const int place = epoch == 0 ? rank : size - 1 - rank;
  switch (inputs) {
    case Inputs::one_less:
      return place == size - 1 ? 3 : 4;
    case Inputs::many_less:
      return 1 + 2 * place;
    case Inputs::none_on_first:
      return place == 0 ? 0 : 3;
    default:
      return 3;
  }
}
int most_inputs(Inputs inputs, int epoch, int size) {
  int most = 0;
  for (int r = 0; r < size; ++r) most = std::max(most, inputs_of(inputs, epoch, r, size));
  return most;
}

// One rank's part of a step.
struct Part {
  int epoch, step, rank, size;
  Device device;
  double scale;  // of losses, so that those of the ranks add up to what the ranks average
  Tensor rows() const { return share(batch(20 * epoch + step, size, DType::f64, device), rank); }
};

enum Branch { kLeft = 1, kRight = 2, kRows = 4 };

struct Tree : Module<Tree> {
  Affine shared{3, 4, 1}, left{4, 2, 2}, right{4, 2, 3};
  Embedding table;
  explicit Tree(bool sparse = false) : table(7, 4, {.sparse = sparse}) {
    table.to(DType::f64);
    table.weight.assign(noise({7, 4}, 11));
  }
  Tensor forward(const Tensor& x, int branches) const {
    Tensor h = tanh(shared(x));
    if (branches & kRows) h = h + table((abs(x.select(1, 0)) * 7.0).to(DType::i64));
    Tensor y = sum(h * h, {1}, true);
    if (branches & kLeft) y = y + left(h);
    if (branches & kRight) y = y + right(tanh(h));
    return y;
  }
  void members(Members& m) override { m("shared", shared), m("left", left), m("right", right), m("table", table); }
};

struct Plan {
  std::string name;
  Inputs inputs = Inputs::many_less;
  DistributedDataParallelOptions options = small_buckets();
  bool initial = true;  // what is divided by
  bool sparse = false;
  int period = 1;  // steps until gradients are reduced, and the optimizer steps
};

// `act(net, part)` does the forwards and backwards of one rank.
template <class Act>
Scenario scenario(const Plan& plan, Act act) {
  Scenario result;
  result.name = "join, " + plan.name;
  result.tolerance = 1e-10;
  result.whole = [=](int ranks) {
    const Device device = accelerators()[0];
    Tree net(plan.sparse);
    net.to(device);
    SGD optimizer(net.parameters(), {.lr = 0.05});
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (int last = plan.period - 1; last < most_inputs(plan.inputs, epoch, ranks); last += plan.period) {
        std::vector<int> active;
        for (int r = 0; r < ranks; ++r)
          if (inputs_of(plan.inputs, epoch, r, ranks) > last) active.push_back(r);
        const double scale = 1.0 / (plan.initial ? ranks : static_cast<double>(active.size()));
        optimizer.zero_grad();
        for (const int r : active)
          for (int i = last - plan.period + 1; i <= last; ++i) act(net, Part{epoch, i, r, ranks, device, scale});
        optimizer.step();
      }
    }
    return all_parameters(net);
  };
  result.with_hook = [=](Communicator& communicator, const HookMaker& make_hook) {
    const int rank = communicator.rank(), size = communicator.size();
    DistributedDataParallel<Tree> net(Tree(plan.sparse), communicator, plan.options);
    if (make_hook) net.register_comm_hook(make_hook());
    SGD optimizer(net.parameters(), {.lr = 0.05});
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      optimizer.zero_grad();
      join({net}, {.divide_by_initial_world_size = plan.initial}, [&] {
        for (int i = 0; i < inputs_of(plan.inputs, epoch, rank, size); ++i) {
          const bool reduces = i % plan.period == plan.period - 1;
          {
            const NoSync scope = reduces ? NoSync() : net.no_sync();
            act(net, Part{epoch, i, rank, size, communicator.device(), 1});
          }
          if (!reduces) continue;
          optimizer.step();
          optimizer.zero_grad();
        }
      });
    }
    return all_parameters(net.module());
  };
  result.rank = [run = result.with_hook](Communicator& communicator) { return run(communicator, {}); };
  return result;
}

constexpr auto fixed_branches = [](int branches) {
  return [=](const auto& net, const Part& part) { (loss_of(net(part.rows(), branches)) * part.scale).backward(); };
};
constexpr auto by_rank = [](const auto& net, const Part& part) {
  constexpr int kChoices[] = {kLeft, kRight | kRows, kRight, kLeft | kRows};
  (loss_of(net(part.rows(), kChoices[(part.rank + part.step) % 4])) * part.scale).backward();
};
constexpr auto two_backwards = [](const auto& net, const Part& part) {
  const Tensor y = net(part.rows(), kLeft | kRight | kRows) * part.scale;
  mean(y * y / part.scale).backward({}, {.retain_graph = true});
  sum(y).backward();
};

// Two modules of one communicator: in even steps one backward goes through both, in odd ones only the second is used.
Scenario two_modules() {
  constexpr Inputs kInputs = Inputs::many_less;
  constexpr auto loss = [](const auto& first, const auto& second, const Part& part) {
    const Tensor b = loss_of(second(part.rows(), kLeft | kRight | kRows)),
                 all = part.step % 2 == 0 ? b + loss_of(first(part.rows(), kLeft | kRight | kRows)) * 0.5 : b;
    return all * part.scale;
  };
  constexpr auto together = [](const ModuleBase& first, const ModuleBase& second) {
    Doubles all = all_parameters(first);
    for (const double value : all_parameters(second)) all.push_back(value);
    return all;
  };
  Scenario result;
  result.name = "join, two modules";
  result.tolerance = 1e-10;
  result.whole = [=](int ranks) {
    const Device device = accelerators()[0];
    Tree first, second;
    second.left.weight.assign(noise({2, 4}, 77));
    first.to(device), second.to(device);
    SGD one(first.parameters(), {.lr = 0.05}), two(second.parameters(), {.lr = 0.05});
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (int i = 0; i < most_inputs(kInputs, epoch, ranks); ++i) {
        one.zero_grad(), two.zero_grad();
        for (int r = 0; r < ranks; ++r)
          if (inputs_of(kInputs, epoch, r, ranks) > i)
            loss(first, second, Part{epoch, i, r, ranks, device, 1.0 / ranks}).backward();
        one.step(), two.step();
      }
    }
    return together(first, second);
  };
  result.with_hook = [=](Communicator& communicator, const HookMaker& make_hook) {
    const int rank = communicator.rank(), size = communicator.size();
    Tree module;
    module.left.weight.assign(noise({2, 4}, 77));
    DistributedDataParallel<Tree> first(Tree(), communicator, small_buckets()),
        second(std::move(module), communicator, small_buckets());
    if (make_hook) first.register_comm_hook(make_hook()), second.register_comm_hook(make_hook());
    SGD one(first.parameters(), {.lr = 0.05}), two(second.parameters(), {.lr = 0.05});
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      join({first, second}, [&] {
        for (int i = 0; i < inputs_of(kInputs, epoch, rank, size); ++i) {
          one.zero_grad(), two.zero_grad();
          loss(first, second, Part{epoch, i, rank, size, communicator.device(), 1}).backward();
          one.step(), two.step();
        }
      });
    }
    return together(first.module(), second.module());
  };
  result.rank = [run = result.with_hook](Communicator& communicator) { return run(communicator, {}); };
  return result;
}

}  // namespace

std::vector<Scenario> join_scenarios() {
  constexpr int kAll = kLeft | kRight | kRows;
  DistributedDataParallelOptions unused = small_buckets(), fixed = small_buckets(), copies = small_buckets(),
                                 twice = small_buckets();
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  copies.gradient_as_bucket_view = false;
  twice.backwards_per_forward = 2;
  std::vector<Scenario> all;
  for (const bool initial : {true, false}) {
    const std::string kind = initial ? "" : ", current count";
    for (const auto& [name, inputs] :
         {std::pair("one less", Inputs::one_less), {"none on one rank", Inputs::none_on_first}, {"even", Inputs::even}})
      all.push_back(scenario({.name = name + kind, .inputs = inputs, .initial = initial}, fixed_branches(kAll)));
    all.push_back(scenario({.name = "copies" + kind, .options = copies, .initial = initial}, fixed_branches(kAll)));
    all.push_back(scenario({.name = "rows" + kind, .initial = initial, .sparse = true}, fixed_branches(kAll)));
    all.push_back(scenario({.name = "held" + kind, .initial = initial, .period = 2}, fixed_branches(kAll)));
    all.push_back(scenario({.name = "two backwards" + kind, .options = twice, .initial = initial}, two_backwards));
  }
  for (const bool sparse : {false, true}) {
    const std::string kind = sparse ? ", rows" : "";
    all.push_back(scenario({.name = "unused" + kind, .options = unused, .sparse = sparse}, by_rank));
    all.push_back(scenario({.name = "static" + kind, .options = fixed, .sparse = sparse},
                           fixed_branches(sparse ? kLeft | kRows : kLeft)));
  }
  all.push_back(scenario({.name = "static, none on one rank", .inputs = Inputs::none_on_first, .options = fixed},
                         fixed_branches(kRight)));
  all.push_back(two_modules());
  return all;
}

}  // namespace parallel_test
