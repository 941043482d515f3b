// Local steps and averages of models, against a plain loop over numbers.
#include "lockstep/parallel/ddp/hooks/post_local_sgd.h"

#include "lockstep/tensor/optim/sgd.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// Both parameters get the same gradients, in buckets of their own.
struct Counted : Module<Counted> {
  Parameter weight{zeros({1}, {.dtype = DType::f64})}, other{zeros({1}, {.dtype = DType::f64})};
  Buffer seen{zeros({1}, {.dtype = DType::f64})};
  Buffer calls{zeros({1}, {.dtype = DType::i64})};
  Tensor forward(const Tensor& x) const { return sum(x * weight.on(x.device()) + x * other.on(x.device())); }
  void members(Members& m) override { m("weight", weight), m("other", other), m("seen", seen), m("calls", calls); }
};

double gradient(int rank, int step) { return (rank + 1) * 12.0 + step; }

// The weight after each step of every rank: gradients are averaged over `group(step)` neighbours, then models over
// `models(step)`.
std::vector<Doubles> expected(int ranks, int steps, const std::function<int(int)>& group,
                              const std::function<int(int)>& models) {
  std::vector<Doubles> all(static_cast<std::size_t>(ranks));
  Doubles weight(static_cast<std::size_t>(ranks));
  const auto average = [](Doubles values, int size) {
    const auto n = static_cast<std::size_t>(size);
    for (std::size_t begin = 0; begin < values.size(); begin += n) {
      double sum = 0;
      for (std::size_t i = begin; i < begin + n; ++i) sum += values[i] / size;
      for (std::size_t i = begin; i < begin + n; ++i) values[i] = sum;
    }
    return values;
  };
  for (int step = 0; step < steps; ++step) {
    Doubles gradients;
    for (int r = 0; r < ranks; ++r) gradients.push_back(gradient(r, step));
    gradients = average(gradients, group(step));
    for (std::size_t r = 0; r < weight.size(); ++r) weight[r] -= gradients[r];
    weight = average(weight, models(step));
    for (std::size_t r = 0; r < weight.size(); ++r) all[r].push_back(weight[r]);
  }
  return all;
}

using MakeAverager = std::function<std::unique_ptr<ModelAverager>(Communicator&)>;

std::vector<Doubles> train(int ranks, int steps, std::int64_t start, int group_size, const MakeAverager& make,
                           int interrupted = -1) {
  return run_ranks(ranks, [&](Communicator& communicator) {
    const auto subgroup = group_size > 0 ? communicator.split(communicator.rank() / group_size) : nullptr;
    Doubles result;
    Counted module;
    std::vector<NamedTensor> averager_state, local_state;
    for (int step = 0; step < steps;) {
      const DistributedDataParallelOptions options{
          .bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6, .init_sync = step == 0};
      DistributedDataParallel<Counted> net(module, communicator, options);
      const auto averager = make(communicator);
      PostLocalSgd local(*averager, {.start_iteration = start, .subgroup = subgroup.get()});
      if (step > 0) averager->load_state_dict(averager_state), local.load_state_dict(local_state);
      net.register_comm_hook(local.hook());
      SGD optimizer(net.parameters(), {.lr = 1});
      for (bool first = true; step < steps && (first || step != interrupted); ++step, first = false) {
        optimizer.zero_grad();
        net(full({1}, gradient(communicator.rank(), step), {.dtype = DType::f64})).backward();
        optimizer.step();
        averager->average(net);
        result.push_back(values(net.module().weight.tensor())[0]);
        if (values(net.module().other.tensor())[0] != result.back()) throw Error("another step for the second bucket");
      }
      if (net.logging_data().bucket_sizes.size() != 2) throw Error("another number of buckets");
      averager_state = averager->state_dict(), local_state = local.state_dict();
      module = net.module();
    }
    return result;
  });
}
double furthest(const std::vector<Doubles>& a, const std::vector<Doubles>& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, largest_difference(a[i], b[i]));
  return largest;
}

}  // namespace

TEST_CASE("post-local SGD with a periodic averager") {
  for (const int ranks : {1, 2, 3}) {
    const MakeAverager make = [](Communicator& c) {
      return std::make_unique<PeriodicModelAverager>(c, ModelAveragerOptions{.period = 3, .warmup_steps = 2});
    };
    const auto wanted = expected(
        ranks, 9, [&](int step) { return step < 2 ? ranks : 1; },
        [&](int step) { return step >= 2 && (step - 2) % 3 == 0 ? ranks : 1; });
    const auto whole = train(ranks, 9, 2, 0, make);
    CHECK(furthest(whole, wanted) < 1e-10);
    CHECK(train(ranks, 9, 2, 0, make, 6) == whole);
  }
}

TEST_CASE("post-local SGD in groups, with a hierarchical averager") {
  const MakeAverager make = [](Communicator& c) {
    return std::make_unique<HierarchicalModelAverager>(c, std::map<std::int64_t, int>{{2, 2}, {4, 4}},
                                                       ModelAveragerOptions{.warmup_steps = 1});
  };
  const auto wanted = expected(
      4, 10, [](int step) { return step < 1 ? 4 : 2; },
      [](int step) { return step < 1 || (step - 1) % 2 != 0 ? 1
                            : (step - 1) % 4 == 0           ? 4
                                                            : 2; });
  CHECK(furthest(train(4, 10, 1, 2, make), wanted) < 1e-10);
}

TEST_CASE("an averager takes floating buffers along where it is told to") {
  for (const bool buffers : {false, true}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      Counted module;
      module.to(communicator.device());
      module.weight.assign(full({1}, communicator.rank() + 1.0, {.dtype = DType::f64}));
      module.seen.assign(full({1}, communicator.rank() + 3.0, {.dtype = DType::f64}));
      module.calls.assign(full({1}, communicator.rank() + 5.0, {.dtype = DType::i64}));
      PeriodicModelAverager averager(communicator, {.period = 2, .buffers = buffers});
      const bool first = averager.average(module), second = averager.average(module);
      return Doubles{values(module.weight.tensor())[0],
                     values(module.seen.tensor())[0],
                     values(module.calls.tensor().to(DType::f64))[0],
                     double(first),
                     double(second),
                     double(averager.step())};
    });
    for (int r = 0; r < 2; ++r)
      CHECK(result[static_cast<std::size_t>(r)] == Doubles{1.5, buffers ? 3.5 : r + 3.0, r + 5.0, 1, 0, 2});
  }
}

TEST_CASE("an averager leaves alone what the wrapper does") {
  struct Apart : Module<Apart> {
    Parameter weight{zeros({1}, {.dtype = DType::f64})}, own{zeros({1}, {.dtype = DType::f64})};
    Parameter again = own;
    Buffer seen{zeros({1}, {.dtype = DType::f64})}, mine{zeros({1}, {.dtype = DType::f64})};
    Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
    void members(Members& m) override {
      m("weight", weight), m("own", own), m("again", again), m("seen", seen), m("mine", mine);
    }
  };
  {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      const Device device = communicator.device();
      DistributedDataParallel<Apart> net(Apart{}, communicator, {.ignore = {"own", "mine"}});
      Apart& module = net.module();
      module.to(device);
      const auto set = [&](const Parameter& member, double value) {
        member.tensor().detach().fill_(value + communicator.rank());
      };
      set(module.weight, 1), set(module.own, 3), set(module.seen, 5), set(module.mine, 7);
      PeriodicModelAverager averager(communicator, {.buffers = true});
      averager.average(net);
      Doubles all;
      for (const Parameter* member :
           {&module.weight, &module.own, static_cast<Parameter*>(&module.seen), static_cast<Parameter*>(&module.mine)})
        all.push_back(values(member->tensor())[0]);
      return all;
    });
    for (int r = 0; r < 2; ++r) CHECK(result[static_cast<std::size_t>(r)] == Doubles{1.5, 3.0 + r, 5.5, 7.0 + r});
  }
}

TEST_CASE("local steps for two modules at once are an error") {
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    PeriodicModelAverager averager(communicator, {.warmup_steps = 5});
    PostLocalSgd local(averager, {.start_iteration = 5});
    DistributedDataParallel<Scale> first(Scale(Doubles{1, 2}), communicator),
        second(Scale(Doubles{1, 2}), communicator);
    first.register_comm_hook(local.hook()), second.register_comm_hook(local.hook());
    sum(first(counting({1, 2}))).backward();
    sum(second(counting({1, 2}))).backward();
  });
  for (const std::string& each : said) CHECK(missing(each, {"[PostLocalSgd]", "one module", "'weight'"}) == "");
}

TEST_CASE("averagers and local steps that do not fit") {
  const auto messages = messages_of_ranks(2, [](Communicator& communicator) {
    std::string all;
    const auto add = [&](const std::function<void()>& call) { all += message_of<InvalidArgument>(call) + "\n"; };
    add([&] { PeriodicModelAverager(communicator, {.period = 0}); });
    add([&] { PeriodicModelAverager(communicator, {.warmup_steps = -1}); });
    add([&] { HierarchicalModelAverager(communicator, {{2, 1}, {3, 2}}, {}); });
    add([&] { HierarchicalModelAverager(communicator, {{2, 4}}, {}); });
    add([&] { HierarchicalModelAverager(communicator, {}, {}); });
    PeriodicModelAverager averager(communicator, {.warmup_steps = 5});
    add([&] { PostLocalSgd(averager, {.start_iteration = 4}); });
    add([&] { averager.load_state_dict({}); });
    add([&] { averager.load_state_dict({{"step", lockstep::tensor(std::int64_t{-1}, {.dtype = DType::i64})}}); });
    PostLocalSgd local(averager, {.start_iteration = 5});
    add([&] { local.load_state_dict({{"step", lockstep::tensor(std::int64_t{1}, {.dtype = DType::i64})}}); });
    throw Error(all);
  });
  for (const std::string& message : messages)
    CHECK(missing(message, {"a period of at least 1, got 0", "warmup_steps of at least 0, got -1",
                            "each a divisor of the next, got {2:1 3:2}", "groups of all 2 ranks", "got {2:4}", "got {}",
                            "warmup_steps, 5, as start_iteration, got 4", "a state of 'step' alone, got 0 entries",
                            "'step' to be at least 0, got -1", "a state of 'iteration' alone"}) == "");
}
