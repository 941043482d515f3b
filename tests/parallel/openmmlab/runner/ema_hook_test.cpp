// EMAHook: averages of the weights, around evaluations and in checkpoints.
#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "lockstep/runtime/host/faults.h"
#include "parallel/openmmlab/model/averages_support.h"

using namespace runner_test;

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
    CHECK(largest_distance(in_val, average) < 1e-14);
    CHECK(largest_distance(average, history.back()) > 1e-3);
    CHECK(after_val == history.back());
    CHECK(ema.steps() == 6);
    // Buffers are the model's, or averages like the rest; those of whole numbers are always the model's.
    Doubles buffer{6};
    if (options.update_buffers) buffer = average_of({{1}, {2}, {3}, {4}, {5}, {6}}, options);
    CHECK(largest_distance(seen_in_val, {buffer[0], 6}) < 1e-14);
    // For inference a checkpoint has the averages; the weights are beside them.
    Counting net;
    load_model(net, folder / "epoch_2.safetensors");
    CHECK(largest_distance(weights(net), average) < 1e-14);
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
    CHECK(largest_distance(averages(), average_of({history[3], history[4], history[5]}, options)) < 1e-14);
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
  second.runner.load_checkpoint(folder / "epoch_1.safetensors");
  CHECK(all_of(ema.averages()) == all_of(second.model.state_dict()));
  CHECK(weights(second.model) == loaded);
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
    Safetensors checkpoint{{{"model.a", full({2}, 7, {.dtype = DType::f64})}}, {}};
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

TEST_CASE("EMAHook: averages on another stream than the last ones keep those until they have been read") {
  const Device device = support::device_at(1);
  const auto averages = [&](bool aside) {
    Line net;
    net.to(device);
    const EMAHook ema({.momentum = 0.25});
    const RunnerHook hook = ema;
    OptimWrapper optim(SGD(net.parameters(), {.lr = 0.1}));
    Runner runner(net, optim, {});
    hook.before_train(runner);
    hook.after_train_iter(runner, LogVars{});
    net.head.weight.tensor().detach().mul_(2.0);
    const Stream here = current_stream(device), side(device);
    const Stream& there = aside ? side : here;
    there.wait_for(here);
    {
      const StreamScope scope(there);
      hook.after_train_iter(runner, LogVars{});
    }
    for (int taker = 0; taker < 8; ++taker)  // of what has been given back too early
      (void)full({taker % 2 == 0 ? 6 : 2}, 1e30, {.dtype = DType::f64, .device = device});
    here.wait_for(there);
    Doubles all;
    for (const auto& each : ema.averages()) {
      const Doubles of = values(each.tensor);
      all.insert(all.end(), of.begin(), of.end());
    }
    side.wait_for(here);
    synchronize(device);
    return all;
  };
  CHECK(averages(true) == averages(false));
}
