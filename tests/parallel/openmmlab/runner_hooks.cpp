// Hooks of a Runner: averages of weights, early stopping, what happens around checkpoints, several evaluators.
#include <array>
#include <atomic>
#include <functional>
#include <set>
#include <thread>

#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "lockstep/parallel/openmmlab/runner/early_stopping_hook.h"
#include "lockstep/parallel/openmmlab/runner/ema_hook.h"
#include "lockstep/runtime/host/faults.h"
#include "parallel/openmmlab/runner_support.h"

using namespace runner_test;

namespace {

// In f64; its buffer counts the training forwards.
struct Counting : BaseModel<Counting> {
  Affine head{3, 2, 1};
  Buffer seen{zeros({1}, {.dtype = DType::f64})}, whole{zeros({1}, {.dtype = DType::i64})};
  ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& x, const Tensor& y, Mode mode) const {
    if (is_training()) {
      const NoGrad no_grad;
      seen.tensor() += 1.0;
      whole.assign(whole.tensor() + ones({1}, {.dtype = DType::i64, .device = whole.device()}));
    }
    const Tensor scores = head(x);
    if (mode == Mode::loss) return Losses{{"loss", mse_loss(scores, y)}};
    return std::vector<Tensor>{scores};
  }
  void members(Members& m) override { m("head", head), m("seen", seen), m("whole", whole); }
};

// The parameters alone.
Doubles weights(const ModuleBase& module) {
  Doubles all;
  for (const Parameter& parameter : module.parameters())
    for (const double value : values(parameter.tensor().reshape({-1}))) all.push_back(value);
  return all;
}

struct Training {
  Counting model;
  OptimWrapper optim{SGD(model.parameters(), {.lr = 0.2, .momentum = 0.5})};
  DataLoader<Pairs> loader{pairs(6), {.batch_size = 2, .shuffle = true, .seed = 5}},
      val_loader{pairs(2), {.batch_size = 2}};
  Prescribed metric{{0.1, 0.5, 0.55, 0.58, 0.59, 0.5, 0.4, 0.3}};
  Runner<Counting> runner;
  explicit Training(RunnerOptions options) : runner(model, optim, std::move(options)) {}
  void train() { runner.train(loader, val_loader, metric); }
};

struct Largest : BaseMetric<double> {
  template <class Batch>
  void process(const Batch&, const std::vector<Tensor>& predictions) {
    for (const double value : values(predictions.at(0).reshape({-1}))) results.push_back(value);
  }
  NamedValues compute_metrics(const std::vector<double>& all) const override {
    return {{"largest", *std::max_element(all.begin(), all.end())}};
  }
};

// Two parameters that are always the same, and are both in an answer.
struct Pair : Module<Pair> {
  explicit Pair(std::int64_t count = 3)
      : a(ones({count}, {.dtype = DType::f64})), b(ones({count}, {.dtype = DType::f64})) {}
  Tensor forward(const Tensor& x) const { return cat({x * a.on(x.device()), x * b.on(x.device())}); }
  void members(Members& m) override { m("a", a), m("b", b); }
  void assign(double value) {
    load_state_dict(
        {{"a", full(a.shape(), value, {.dtype = DType::f64})}, {"b", full(b.shape(), value, {.dtype = DType::f64})}});
  }
  Parameter a, b;
};
// What callers of the model get while `change` is called again and again, each answer once. "torn" is one of two
// versions.
template <class M, class F>
std::string answers_of(const M& model, F&& change) {
  const auto answer = [&model] {
    const NoGrad no_grad;
    const Doubles all = values(model(ones({3}, {.dtype = DType::f64})));
    return all.front() == all.back() ? cat(all.front()) : std::string("torn");
  };
  std::set<std::string> seen{answer()};
  std::array<std::set<std::string>, 3> of_callers;
  std::atomic<int> count{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> callers;
  for (std::set<std::string>& mine : of_callers)
    callers.emplace_back([&] {
      for (; !done; ++count) mine.insert(answer());
    });
  while (count < 2000) change();
  done = true;
  for (std::thread& caller : callers) caller.join();
  for (std::set<std::string>& mine : of_callers) seen.merge(mine);
  std::string text;
  for (const std::string& each : seen) text += each + ' ';
  return text;
}

RunnerHook stop_at(std::int64_t iter) {
  RunnerHook hook;
  hook.after_train_iter = [iter](RunnerCore& runner, const LogVars&) {
    if (runner.iter() == iter) runner.stop_training();
  };
  return hook;
}

// The averages after each iteration by their definition, of weights that were written down after each.
Doubles average_of(const std::vector<Doubles>& history, const EMAHookOptions& o) {
  Doubles average = history[0];
  for (std::size_t i = 1; i < history.size(); ++i) {
    if (i % static_cast<std::size_t>(o.interval) != 0) continue;
    const auto updates = static_cast<double>(i);
    double share = o.momentum;
    if (o.kind == AverageKind::annealing)
      share = std::max(o.momentum, static_cast<double>(o.gamma) / (static_cast<double>(o.gamma) + updates));
    if (o.kind == AverageKind::stochastic) share = 1 / (std::floor(updates / static_cast<double>(o.interval)) + 1);
    for (std::size_t k = 0; k < average.size(); ++k) average[k] = (1 - share) * average[k] + share * history[i][k];
  }
  return average;
}
double distance(const Doubles& a, const Doubles& b) {
  double most = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("EMAHook: averages are those of the definition, around evaluations and in checkpoints") {
  for (const EMAHookOptions& options :
       {EMAHookOptions{.momentum = 0.25}, EMAHookOptions{.momentum = 0.25, .interval = 2},
        EMAHookOptions{.momentum = 0.1, .update_buffers = true, .kind = AverageKind::annealing, .gamma = 4},
        EMAHookOptions{.kind = AverageKind::stochastic}}) {
    const TemporaryFolder folder;
    std::vector<Doubles> history;
    Doubles in_val, after_val, seen_in_val;
    RunnerHook hook;
    hook.after_train_iter = [&](RunnerCore& runner, const LogVars&) { history.push_back(weights(runner.module())); };
    hook.after_val_iter = [&](RunnerCore& runner) {
      in_val = weights(runner.module());
      seen_in_val = {static_cast<Counting&>(runner.module()).seen.tensor().item<double>(),
                     static_cast<double>(static_cast<Counting&>(runner.module()).whole.tensor().item<std::int64_t>())};
    };
    hook.after_val_epoch = [&](RunnerCore& runner, const NamedValues&) { after_val = weights(runner.module()); };
    const EMAHook ema(options);
    Training training(
        {.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .work_dir = folder.path(), .hooks = {ema, hook}});
    training.train();
    REQUIRE(history.size() == 6);
    const Doubles average = average_of(history, options);
    CHECK(distance(in_val, average) < 1e-14);
    CHECK(distance(average, history.back()) > 1e-3);
    CHECK(after_val == history.back());
    CHECK(ema.steps() == 6);
    // Buffers are the model's, or averages like the rest; those of whole numbers are always the model's.
    Doubles buffer{6};
    if (options.update_buffers) buffer = average_of({{1}, {2}, {3}, {4}, {5}, {6}}, options);
    CHECK(distance(seen_in_val, {buffer[0], 6}) < 1e-14);
    // For inference a checkpoint has the averages; the weights are beside them.
    Counting net;
    load_model(net, folder / "epoch_2.safetensors");
    CHECK(distance(weights(net), average) < 1e-14);
    std::string names;
    for (const NamedTensor& named : load_safetensors(folder / "epoch_2.safetensors").tensors)
      if (named.name == "ema.head.weight")
        CHECK(values(named.tensor.reshape({-1})) == values(training.model.head.weight.tensor().reshape({-1})));
      else
        names += named.name + ' ';
    CHECK(missing(names, {"model.head.weight", "ema.head.bias", "ema.seen"}) == "");
  }
  CHECK(missing(message_of<InvalidArgument>([] { EMAHook({.momentum = 1}); }),
                {"momentum above 0 and below 1, got 1"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { EMAHook({.interval = 0}); }), {"interval", "got 0"}) == "");
}

TEST_CASE("EMAHook: until it begins the averages are the weights") {
  for (const EMAHookOptions& options :
       {EMAHookOptions{.momentum = 0.25, .begin_iter = 4}, EMAHookOptions{.momentum = 0.25, .begin_epoch = 2}}) {
    std::vector<Doubles> history;
    RunnerHook hook;
    hook.after_train_iter = [&](RunnerCore& runner, const LogVars&) { history.push_back(weights(runner.module())); };
    const EMAHook ema(options);
    Training training({.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .hooks = {ema, hook, stop_at(3)}});
    training.train();
    Doubles average;
    const auto averages = [&] {
      Doubles all;
      for (const NamedTensor& each : ema.averages())
        if (each.name.starts_with("head"))
          for (const double value : values(each.tensor.reshape({-1}))) all.push_back(value);
      return all;
    };
    CHECK(averages() == history.back());
    training.train();
    CHECK(distance(averages(), average_of({history[3], history[4], history[5]}, options)) < 1e-14);
  }
}

TEST_CASE("EMAHook: an evaluation that throws gives the weights back") {
  const EMAHook ema({.momentum = 0.25});
  Training training({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .hooks = {ema}});
  training.runner.train(training.loader);
  const Doubles before = weights(training.model);
  struct Broken : Prescribed {
    void process(const std::array<Tensor, 2>&, const std::vector<Tensor>&) { throw Error("no"); }
  } broken;
  CHECK(message_of<Error>([&] { training.runner.val(training.val_loader, broken); }) == "no");
  CHECK(weights(training.model) == before);
}

TEST_CASE("Runner: warm-up, cosine, averages and early stopping are resumed with the bits of an undisturbed training") {
  const auto options = [](const std::string& folder, std::vector<RunnerHook> hooks) {
    return RunnerOptions{.train_cfg = EpochBasedTrainLoop{.max_epochs = 8},
                         .work_dir = folder,
                         .param_schedulers = {mmengine::LinearLR{.start_factor = 0.01, .by_epoch = false, .end = 5},
                                              mmengine::CosineAnnealingLR{
                                                  .eta_min_ratio = 0.1, .begin = 1, .convert_to_iter_based = true}},
                         .checkpoint = {.max_keep_ckpts = 2, .save_best = "acc/top1"},
                         .hooks = std::move(hooks)};
  };
  const auto state = [](Training& training, const EMAHook& ema) {
    return cat(all_of(training.model.state_dict()), all_of(training.optim.state_dict()), all_of(ema.averages()),
               ema.steps(), ' ', training.runner.iter(), ' ', training.runner.best_checkpoint());
  };
  const TemporaryFolder whole_folder;
  const EMAHook whole_ema({.momentum = 0.25});
  const EarlyStoppingHook whole_stop({.monitor = "acc/top1", .min_delta = 0.02, .patience = 3});
  Training whole(options(whole_folder.path(), {whole_ema, whole_stop}));
  whole.train();
  // 0.1 0.5 0.55 0.58 are improvements by more than 0.02; 0.59 0.5 0.4 are none.
  CHECK(whole.runner.epoch() == 7);
  CHECK(whole_stop.reason() == "acc/top1 has not improved on 0.58 in 3 validations");
  for (const std::int64_t at : {2, 3, 11, 15}) {
    INFO("interrupted after iteration " << at);
    const TemporaryFolder folder;
    {
      const EMAHook ema({.momentum = 0.25});
      Training first(
          options(folder.path(),
                  {ema, EarlyStoppingHook({.monitor = "acc/top1", .min_delta = 0.02, .patience = 3}), stop_at(at)}));
      first.train();
    }
    const EMAHook ema({.momentum = 0.25});
    const EarlyStoppingHook stop({.monitor = "acc/top1", .min_delta = 0.02, .patience = 3});
    Training second(options(folder.path(), {ema, stop}));
    REQUIRE(second.runner.resume());
    CHECK(second.runner.iter() == at);
    second.metric.next = static_cast<std::size_t>(at / 3);
    second.train();
    CHECK(state(second, ema) == state(whole, whole_ema));
    CHECK(stop.reason() == whole_stop.reason());
  }
}

TEST_CASE("EMAHook: a checkpoint without averages makes them begin with its weights") {
  const TemporaryFolder folder;
  {
    Training first({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .work_dir = folder.path()});
    first.train();
  }
  const EMAHook ema({.momentum = 0.25});
  Training second({.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .work_dir = folder.path(), .hooks = {ema}});
  CapturedLog log;
  REQUIRE(second.runner.resume());
  REQUIRE(log.messages.size() == 1);
  CHECK(missing(log.messages[0], {"[EMAHook]", "no averages"}) == "");
  CHECK(all_of(ema.averages()) == all_of(second.model.state_dict()));
  // A model that is loaded for evaluation is evaluated, not what was averaged before.
  const Doubles loaded = weights(second.model);
  second.train();
  Doubles in_val;
  second.runner.load_checkpoint(folder / "epoch_1.safetensors");
  CHECK(all_of(ema.averages()) == all_of(second.model.state_dict()));
  CHECK(weights(second.model) == loaded);
}

TEST_CASE("a checkpoint that is refused changes nothing that hooks remember") {
  const TemporaryFolder folder;
  int taken = 0;
  struct Hooked {
    EMAHook ema{{.momentum = 0.25}};
    EarlyStoppingHook stop{{.monitor = "acc/top1"}};
    Training training;
    Hooked(RunnerOptions options, RunnerHook more)
        : training([&] {
            options.hooks = {ema, stop, std::move(more)};
            return std::move(options);
          }()) {}
    std::string memory() {
      Checkpoint checkpoint;
      RunnerHook(stop).before_save_checkpoint(training.runner, checkpoint);
      return cat(all_of(ema.averages()), ema.steps(), ' ', checkpoint.metadata.begin()->second);
    }
  };
  RunnerHook counts;
  counts.after_take_over = [&](RunnerCore&) { ++taken; };
  const RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}};
  Hooked first(options, {});
  first.training.train();
  const std::string path = folder / "first", more = folder / "more", adam = folder / "adam", other = folder / "other";
  first.training.runner.save_checkpoint(path);
  // One that is refused by its count of schedulers, one by its optimizer, one by its model.
  Checkpoint changed = load_safetensors(path);
  changed.metadata["schedulers"] = "1";
  save_safetensors(more, changed.tensors, changed.metadata);
  changed = load_safetensors(path);
  std::erase_if(changed.tensors, [](const NamedTensor& each) { return each.name.starts_with("optimizer."); });
  save_safetensors(adam, changed.tensors, changed.metadata);
  for (NamedTensor& each : changed.tensors)
    if (each.name == "model.head.weight" || each.name == "ema.head.weight") each.name += "s";
  save_safetensors(other, changed.tensors, changed.metadata);

  RunnerOptions shorter = options;
  shorter.train_cfg = EpochBasedTrainLoop{.max_epochs = 1};
  Hooked second(shorter, counts);
  second.training.train();
  const std::string before = second.memory();
  CHECK(before != first.memory());
  Runner<Counting>& runner = second.training.runner;
  CHECK(missing(message_of<InvalidArgument>([&] { runner.resume(more); }), {"expected 0 schedulers"}) == "");
  CHECK(second.memory() == before);
  CHECK(missing(message_of<InvalidArgument>([&] { runner.resume(adam); }), {"expected the optimizer"}) == "");
  CHECK(second.memory() == before);
  CHECK(missing(message_of<InvalidArgument>([&] { runner.resume(other); }), {"expected the model"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { runner.load_checkpoint(other); }), {"head.weight"}) == "");
  CHECK(second.memory() == before);
  CHECK(taken == 0);
  runner.resume(path);
  CHECK(second.memory() == first.memory());
  CHECK(taken == 1);
}

TEST_CASE("EMAHook: whoever calls the model meanwhile meets the weights or the averages") {
  Pair net;
  OptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}));
  Runner runner(net, optim);
  const RunnerHook hook = EMAHook();
  hook.before_train(runner);
  net.assign(2);
  CHECK(answers_of(net, [&] { hook.around_evaluation(runner)(); }).find("torn") == std::string::npos);
}

TEST_CASE("EMAHook: where the averages cannot be put in place the weights stay") {
  const Device device = Device::host(1);
  const auto weights_of = [](const Pair& net) {
    return cat(net.a.tensor()[0].item<double>(), ' ', net.b.tensor()[0].item<double>());
  };
  Pair net(1 << 20);  // whose copies need memory of their own
  net.to(device);
  OptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}));
  Runner runner(net, optim);
  const RunnerHook hook = EMAHook();
  hook.before_train(runner);
  net.assign(2);
  int failures = 0;
  for (bool struck = true; struck; failures += struck) {
    std::function<void()> put_back;
    empty_cache(device);
    detail::host_faults().fail_allocation(failures + 1);
    try {
      put_back = hook.around_evaluation(runner);
    } catch (const OutOfMemory&) {
    }
    struck = detail::host_faults().struck(1);
    detail::host_faults().clear();
    CHECK(!put_back == struck);
    CHECK(weights_of(net) == (struck ? "2 2" : "1 1"));
    if (put_back) put_back();
    CHECK(weights_of(net) == "2 2");
    // What is saved now are the weights, not what they were when the memory ran out.
    Checkpoint checkpoint{{{"model.a", full({2}, 7, {.dtype = DType::f64})}}, {}};
    hook.before_save_checkpoint(runner, checkpoint);
    REQUIRE(checkpoint.tensors.back().name == "ema.a");
    CHECK(values(checkpoint.tensors.back().tensor) == Doubles{7, 7});
  }
  CHECK(failures == 2);
}

TEST_CASE("EMAHook: ranks have the same averages") {
  const auto averages = run_ranks(2, [](Communicator& communicator) {
    const auto rank = static_cast<std::uint64_t>(communicator.rank());
    MMDistributedDataParallel model(Counting{}, communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.2}));
    const EMAHook ema({.momentum = 0.25});
    Runner runner(model, optim, {.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .hooks = {ema}});
    DataLoader loader(pairs(4, 10 + rank), {.batch_size = 2}),
        val_loader(pairs(2), DistributedSampler(2, communicator.rank(), 2, {.shuffle = false}), {.batch_size = 1});
    SquaredError metric;
    runner.train(loader, val_loader, metric);
    return all_of(ema.averages());
  });
  CHECK(averages[0] == averages[1]);
}

TEST_CASE("an averaged model is a model of its own") {
  Counting net;
  ExponentialMovingAverage<Counting> ema(net, {.momentum = 0.25});
  MMDataParallel wrapper(deep_copy(net), {.devices = {Device::host(1)}});
  std::vector<Doubles> history;
  for (int i = 0; i < 4; ++i) {
    const NoGrad no_grad;
    wrapper.module().head.weight.tensor() += 1.0 + i;
    history.push_back(weights(wrapper.module()));
    ema.update_parameters(wrapper);
  }
  CHECK(distance(weights(ema.module()), average_of(history, {.momentum = 0.25})) < 1e-14);
  CHECK(ema.steps() == 4);
  CHECK(!ema.module().head.weight.requires_grad());
  CHECK(net.head.weight.requires_grad());
  CHECK(values(ema(counting({1, 3}), Tensor(), Mode::predict).predictions()[0]) !=
        values(net(counting({1, 3}), Tensor(), Mode::predict).predictions()[0]));
  CHECK(missing(message_of<InvalidArgument>([&] { ema.update_parameters(Line()); }), {"[AveragedModel]", "names"}) ==
        "");
  CHECK(missing(message_of<InvalidArgument>([&] { AveragedModel(net, {.momentum = 0}); }), {"got 0"}) == "");
}

TEST_CASE("an averaged model that is in use has one version of its averages at each call") {
  Pair net;
  AveragedModel ema(net, {.momentum = 0.5});
  ema.update_parameters(net);
  double value = 1;
  const auto update = [&] {
    net.assign(value = 4 - value);
    ema.update_parameters(net);
  };
  CHECK(answers_of(ema, update).find("torn") == std::string::npos);
}

TEST_CASE("an averaged model is left alone by updates that the interval passes over") {
  const Pair net;
  AveragedModel ema(net, {.interval = 2});
  const auto backward_after_update = [&] {
    const Tensor x = ones({3}, {.dtype = DType::f64}).set_requires_grad(true);
    const Tensor y = sum(ema(x));
    ema.update_parameters(net);
    return message_of<Error>([&] { y.backward(); });
  };
  CHECK(missing(backward_after_update(), {"changed in place"}) == "");
  CHECK(backward_after_update() == "no error");
  CHECK(missing(backward_after_update(), {"changed in place"}) == "");
}

TEST_CASE("a model may update the averages that it uses while it is called") {
  struct Momentum : Module<Momentum> {
    Pair net;
    mutable AveragedModel<Pair> key{net, {.momentum = 0.5}};
    Tensor forward(const Tensor& x) const {
      const Tensor before = key(x);
      key.update_parameters(net);
      return cat({before, key(x)});
    }
    void members(Members& m) override { m("net", net), m("key", key); }
  } momentum;
  const NoGrad no_grad;
  const Tensor x = ones({3}, {.dtype = DType::f64});
  momentum(x);
  momentum.net.assign(3);
  CHECK(values(momentum(x)) == Doubles{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2});
}

TEST_CASE("EarlyStoppingHook: when a training ends") {
  const auto epochs = [](EarlyStoppingHookOptions options, std::vector<double> scores) {
    const EarlyStoppingHook hook(std::move(options));
    Training training(
        {.train_cfg = EpochBasedTrainLoop{.max_epochs = static_cast<std::int64_t>(scores.size())}, .hooks = {hook}});
    training.metric.scores = std::move(scores);
    training.train();
    return cat(training.runner.epoch(), ' ', hook.reason());
  };
  const double nan = std::nan("");
  CHECK(epochs({.monitor = "acc/top1", .min_delta = 0, .patience = 2}, {1, 2, 2, 3, 3, 3, 4}) ==
        "6 acc/top1 has not improved on 3 in 2 validations");
  CHECK(epochs({.monitor = "acc/top1", .patience = 2}, {1, 1.05, 1.08, 4}) ==
        "3 acc/top1 has not improved on 1 in 2 validations");
  CHECK(epochs({.monitor = "acc/top1", .rule = Rule::less, .min_delta = 0, .patience = 2}, {3, 2, 2, 1, 1, 1, 1}) ==
        "6 acc/top1 has not improved on 1 in 2 validations");
  CHECK(epochs({.monitor = "acc/top1", .patience = 9}, {1, nan, 2}) == "2 acc/top1 is nan");
  CHECK(epochs({.monitor = "acc/top1", .check_finite = false, .patience = 9}, {1, nan, 2}) == "3 ");
  CHECK(epochs({.monitor = "acc/top1", .patience = 9, .stopping_threshold = 0.5}, {0.1, 0.5, 0.6, 0.7}) ==
        "3 acc/top1 is 0.6, better than 0.5");
  CHECK(epochs({.monitor = "loss", .patience = 2}, {1, 2, 3, 4}) == "3 loss has not improved on 1 in 2 validations");
  CapturedLog log;
  CHECK(epochs({.monitor = "mAP"}, {1, 2}) == "2 ");
  REQUIRE(log.messages.size() == 2);
  CHECK(missing(log.messages[0], {"[EarlyStoppingHook] expected a metric out of (loss, acc/top1), got 'mAP'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] {
                  epochs({.monitor = "mAP", .strict = true}, {1, 2});
                }),
                {"got 'mAP'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { EarlyStoppingHook({.monitor = "mse"}); }),
                {"a rule for the metric 'mse'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { EarlyStoppingHook({}); }), {"got none"}) == "");
}

TEST_CASE("Runner: hooks run by priority, also around checkpoints") {
  const TemporaryFolder folder;
  std::string said;
  const auto saying = [&said](const char* name, Priority priority) {
    RunnerHook hook;
    hook.before_train = [&said, name](RunnerCore&) { said += cat(name, ' '); };
    hook.before_save_checkpoint = [&said, name](RunnerCore&, Checkpoint& checkpoint) {
      said += cat("save ", name, ' ');
      checkpoint.metadata["last"] = name;
    };
    hook.after_load_checkpoint = [&said, name](RunnerCore& runner, Checkpoint& checkpoint) {
      said += cat(runner.resuming() ? "resume " : "load ", name, ' ', checkpoint.metadata.at("last"), ' ');
      for (NamedTensor& named : checkpoint.tensors)
        if (named.name == "model.head.bias" && std::string_view(name) == "a")
          named.tensor = full({2}, 7, {.dtype = DType::f64});
    };
    hook.priority = priority;
    return hook;
  };
  const std::vector<RunnerHook> hooks{saying("c", Priority::low), saying("a", Priority::normal),
                                      saying("b", Priority::normal), saying("0", Priority::very_high)};
  Training training({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .work_dir = folder.path(), .hooks = hooks});
  training.train();
  CHECK(said == "0 a b c save 0 save a save b save c ");
  said.clear();
  Training second({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .work_dir = folder.path(), .hooks = hooks});
  second.runner.load_checkpoint(folder / "epoch_1.safetensors");
  CHECK(said == "load 0 c load a c load b c load c c ");
  CHECK(values(second.model.head.bias.tensor()) == Doubles{7, 7});
  said.clear();
  REQUIRE(second.runner.resume());
  CHECK(said == "resume 0 c resume a c resume b c resume c c ");
  CHECK(!second.runner.resuming());

  // What a hook throws on rank 0 is thrown on every rank, and nothing is written.
  const auto failures = messages_of_ranks(2, [&](Communicator& communicator) {
    RunnerHook hook;
    hook.before_save_checkpoint = [](RunnerCore&, Checkpoint&) { throw Error("no room"); };
    MMDistributedDataParallel model(Line{}, communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.2}));
    Runner runner(model, optim, {.hooks = {hook}});
    runner.save_checkpoint(folder / "none");
  });
  for (const std::string& failure : failures) CHECK(missing(failure, {"no room"}) == "");
  CHECK(!exists(folder / "none"));
}

TEST_CASE("several evaluators give their metrics together") {
  Training training({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}});
  Largest largest;
  SquaredError error;
  Evaluators both(error, largest);
  const NamedValues metrics = training.runner.val(training.val_loader, both);
  CHECK(metrics.count() == 3);
  CHECK(metrics.contains("mse"));
  CHECK(metrics.contains("largest"));
  SquaredError again;
  Evaluators twice(error, again);
  CHECK(missing(message_of<InvalidArgument>([&] { training.runner.val(training.val_loader, twice); }),
                {"'mse' of two"}) == "");
  Prescribed a{{1}}, b{{2}};
  Evaluators one(a);
  CHECK(training.runner.val(training.val_loader, one).at("acc/top1").as_number() == 1);
  Evaluators same(a, b);
  CHECK_THROWS(training.runner.val(training.val_loader, same));
}
