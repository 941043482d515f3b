// Trainings in which each rank does something of its own: branches by rank, gradients that stay from step to step,
// forwards and backwards in other orders. One module that sees the rows of all ranks, one rank after the other, ends
// with the same parameters.
#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/scenarios.h"
#include "support/watched.h"

namespace parallel_test {
namespace {

const int kSteps = support::watched() ? 4 : 7;

enum Branch { kLeft = 1, kRight = 2, kRows = 4, kAll = kLeft | kRight | kRows };

struct Branchy : Module<Branchy> {
  Affine shared{3, 4, 1}, left{4, 2, 2}, right{4, 2, 3};
  Embedding table;
  Buffer factor{full({1}, 1, {.dtype = DType::f64})};
  explicit Branchy(bool sparse) : table(7, 4, {.sparse = sparse}) {
    table.to(DType::f64);
    table.weight.assign(noise({7, 4}, 11));
  }
  Tensor forward(const Tensor& x, int branches) const {
    Tensor h = tanh(shared(x)) * factor.on(x.device());
    if (branches & kRows) h = h + table((abs(x.select(1, 0)) * 7.0).to(DType::i64));
    Tensor y = sum(h * h, {1}, true);
    if (branches & kLeft) y = y + left(h);
    if (branches & kRight) y = y + right(tanh(h));
    return y;
  }
  void members(Members& m) override {
    m("shared", shared), m("left", left), m("right", right), m("table", table), m("factor", factor);
  }
};

// One rank's part of a step.
struct Part {
  int step, rank, size;
  Device device;
  double scale;  // of losses, so that those of all ranks add up to the mean
  Tensor rows(int number) const { return share(batch(4 * step + number, size, DType::f64, device), rank); }
  template <class Net>
  Tensor loss(const Net& net, int number, int branches) const {
    return loss_of(net(rows(number), branches)) * scale;
  }
};

// `act(net, module, part)` does the forwards and backwards of one rank; at its end the ranks agree. Gradients are freed
// before every `frees`-th step.
template <class Act>
Scenario scenario(std::string name, DistributedDataParallelOptions options, bool sparse, int frees, Act act) {
  Scenario result;
  result.name = std::move(name);
  result.tolerance = 1e-10;
  result.whole = [=](int ranks) {
    const Device device = accelerators()[0];
    Branchy net(sparse);
    net.to(device);
    SGD optimizer(net.parameters(), {.lr = 0.02});
    for (int i = 0; i < kSteps; ++i) {
      if (i % frees == 0) optimizer.zero_grad();
      for (int rank = 0; rank < ranks; ++rank) act(net, net, Part{i, rank, ranks, device, 1.0 / ranks});
      optimizer.step();
    }
    return all_parameters(net);
  };
  result.with_hook = [=](Communicator& communicator, const HookMaker& make_hook) {
    DistributedDataParallel<Branchy> net(Branchy(sparse), communicator, options);
    if (make_hook) net.register_comm_hook(make_hook());
    SGD optimizer(net.parameters(), {.lr = 0.02});
    for (int i = 0; i < kSteps; ++i) {
      if (i % frees == 0) optimizer.zero_grad();
      act(net, net.module(), Part{i, communicator.rank(), communicator.size(), communicator.device(), 1});
      optimizer.step();
    }
    return all_parameters(net.module());
  };
  result.rank = [run = result.with_hook](Communicator& communicator) { return run(communicator, {}); };
  return result;
}

// In some steps a branch is for some ranks, in some for all, in some for none; the shared layer is always used.
int any_branches(const Part& part, int number) {
  switch ((part.step + number) % 4) {
    case 0:
      return part.rank % 2 == 0 ? kAll : kLeft;
    case 1:
      return part.rank == 0 ? kRight : kLeft | kRows;
    case 2:
      return 0;
    default:
      return part.rank == part.size - 1 ? kRows : 0;
  }
}

constexpr auto by_rank = [](const auto& net, auto&, const Part& part) {
  part.loss(net, 0, any_branches(part, 0)).backward();
};
constexpr auto always_alike = [](const auto& net, auto&, const Part& part) {
  part.loss(net, 0, part.rank % 2 == 0 ? kRight | kRows : kLeft).backward();
};
constexpr auto held_first = [](const auto& net, auto&, const Part& part) {
  {
    [[maybe_unused]] const auto scope = hold(net);
    part.loss(net, 0, any_branches(part, 1)).backward();
  }
  part.loss(net, 1, any_branches(part, 0)).backward();
};
constexpr auto two_and_two = [](const auto& net, auto&, const Part& part) {
  const Tensor first = part.loss(net, 0, kAll), second = part.loss(net, 1, kAll);
  (part.step % 2 ? first : second).backward();
  (part.step % 2 ? second : first).backward();
};
constexpr auto two_and_two_by_rank = [](const auto& net, auto&, const Part& part) {
  const Tensor first = part.loss(net, 0, any_branches(part, 0)), second = part.loss(net, 1, any_branches(part, 1));
  first.backward();
  second.backward();
};
Tensor held_loss(const auto& net, const Part& part, int number, int branches) {
  [[maybe_unused]] const auto scope = hold(net);
  return part.loss(net, number, branches);
}
// What was held is reduced with what comes after it, by its own backward or by none.
constexpr auto held_and_others = [](const auto& net, auto&, const Part& part) {
  const Tensor held = held_loss(net, part, 0, part.rank == 0 ? kLeft : kAll);
  const Tensor first = part.loss(net, 1, kAll), second = part.loss(net, 2, kAll);
  (part.step % 2 ? held : first).backward();
  (part.step % 2 ? first : held).backward();
  second.backward();
};
constexpr auto held_in_one_backward = [](const auto& net, auto&, const Part& part) {
  const Tensor held = held_loss(net, part, 0, kAll);
  (held + part.loss(net, 1, kAll)).backward();
};
// Of every rank another buffer object, in every step; rank 0's counts.
constexpr auto new_buffers = [](const auto& net, auto& module, const Part& part) {
  const bool whole = part.scale != 1 || part.size == 1;
  module.factor =
      Buffer(full({1}, 0.5 + 0.1 * part.step + (whole ? 0 : part.rank), {.dtype = DType::f64, .device = part.device}));
  part.loss(net, 0, kAll).backward();
};

}  // namespace

std::vector<Scenario> rank_scenarios() {
  DistributedDataParallelOptions unused = small_buckets(), fixed = small_buckets();
  unused.find_unused_parameters = true;
  fixed.static_graph = true;
  std::vector<Scenario> all;
  for (const bool view : {true, false}) {
    unused.gradient_as_bucket_view = fixed.gradient_as_bucket_view = view;
    for (const bool sparse : {false, true}) {
      const std::string kind = cat(view ? ", views" : ", copies", sparse ? ", rows" : "");
      all.push_back(scenario("gradients that stay, branches by rank" + kind, unused, sparse, 3, by_rank));
      all.push_back(scenario("gradients that stay, static" + kind, fixed, sparse, 3, always_alike));
      all.push_back(scenario("held first, gradients that stay" + kind, unused, sparse, 4, held_first));
    }
  }
  // A later forward would write rank 0's buffers over those that the graph of an earlier one has saved.
  DistributedDataParallelOptions plain = small_buckets();
  plain.broadcast_buffers = unused.broadcast_buffers = fixed.broadcast_buffers = false;
  for (const bool sparse : {false, true}) {
    const std::string kind = sparse ? ", rows" : "";
    all.push_back(scenario("two forwards, two backwards" + kind, plain, sparse, 1, two_and_two));
    all.push_back(scenario("two forwards, two backwards, by rank" + kind, unused, sparse, 2, two_and_two_by_rank));
    all.push_back(scenario("held and others" + kind, unused, sparse, 1, held_and_others));
  }
  all.push_back(scenario("two forwards, two backwards, static", fixed, false, 1, two_and_two));
  all.push_back(scenario("held in one backward", plain, false, 1, held_in_one_backward));
  all.push_back(scenario("buffers that are replaced", small_buckets(), false, 1, new_buffers));
  return all;
}

}  // namespace parallel_test
