// Hooks of a Runner together: their order, checkpoints that they add to, resuming; several evaluators.
#include "lockstep/parallel/openmmlab/runner/early_stopping_hook.h"
#include "parallel/openmmlab/model/averages_support.h"

using namespace runner_test;

namespace {

struct Largest : BaseMetric<double> {
  template <class Batch>
  void process(const Batch&, const std::vector<Tensor>& predictions) {
    for (const double value : values(predictions.at(0).reshape({-1}))) results.push_back(value);
  }
  NamedValues compute_metrics(const std::vector<double>& all) const override {
    return {{"largest", *std::max_element(all.begin(), all.end())}};
  }
};

}  // namespace

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
      Safetensors checkpoint;
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
  Safetensors changed = load_safetensors(path);
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

TEST_CASE("Runner: hooks run by priority, also around checkpoints") {
  const TemporaryFolder folder;
  std::string said;
  const auto saying = [&said](const char* name, Priority priority) {
    RunnerHook hook;
    hook.before_train = [&said, name](RunnerCore&) { said += cat(name, ' '); };
    hook.before_save_checkpoint = [&said, name](RunnerCore&, Safetensors& checkpoint) {
      said += cat("save ", name, ' ');
      checkpoint.metadata["last"] = name;
    };
    hook.after_load_checkpoint = [&said, name](RunnerCore& runner, Safetensors& checkpoint) {
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
    hook.before_save_checkpoint = [](RunnerCore&, Safetensors&) { throw Error("no room"); };
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

TEST_CASE("Runner: what hooks have done around an evaluation is undone once, whatever is thrown") {
  std::string undone;
  const auto around = [&undone](const char* name, auto error) {
    RunnerHook hook;
    hook.around_evaluation = [&undone, name, error](RunnerCore&) -> std::function<void()> {
      return [&undone, name, error] {
        undone += name;
        throw error;
      };
    };
    return hook;
  };
  Training training({.hooks = {around("a", 42), around("b", Error("of b"))}});
  CHECK(message_of<Error>([&] { training.runner.val(training.val_loader, training.metric); }) == "of b");
  CHECK(undone == "ba");
  struct Broken : Prescribed {
    void process(const std::array<Tensor, 2>&, const std::vector<Tensor>&) { throw Error("of the metric"); }
  } broken;
  CHECK(message_of<Error>([&] { training.runner.val(training.val_loader, broken); }) == "of the metric");
  CHECK(undone == "baba");
}
