// Checkpoints of a Runner: a training that was interrupted goes on with the bits of one that was not.
#include "lockstep/tensor/io/safetensors.h"
#include "parallel/openmmlab/runner/runner_support.h"

using namespace runner_test;

namespace {

// Everything a training has: dropout, momentum, accumulation whose windows cross the epochs, three schedulers, the
// best of its validations.
struct SavedTraining {
  Line model;
  OptimWrapper optim{SGD(model.parameters(), {.lr = 0.05, .momentum = 0.9}),
                     {.accumulative_counts = 2, .clip_grad = ClipGrad{.max_norm = 5}}};
  DataLoader<Pairs> loader{pairs(6), {.batch_size = 2, .shuffle = true, .seed = 5}};
  DataLoader<Pairs> val_loader{pairs(3, 20), {.batch_size = 2}};
  SquaredError metric;
  Runner<Line> runner;

  explicit SavedTraining(RunnerOptions options) : runner(model, optim, complete(std::move(options))) {
    manual_seed(11);
  }

  void train() { runner.train(loader, val_loader, metric); }
  std::string state() {
    return cat(all_of(model.state_dict()), all_of(optim.state_dict()), thread_context().random_counter, ' ',
               runner.epoch(), ' ', runner.iter(), ' ', runner.best_score().value_or(-1), ' ',
               runner.best_checkpoint());
  }

 private:
  RunnerOptions complete(RunnerOptions options) {
    Optimizer& sgd = optim.optimizer();
    options.param_schedulers = {{LrScheduler(sgd, StepLR{.step_size = 2, .gamma = 0.5})},
                                {MomentumScheduler(sgd, LinearLR{.total_iters = 7}), {.by_epoch = false}}};
    options.checkpoint.save_best = "mse";
    options.checkpoint.rule = Rule::less;
    return options;
  }
};

std::vector<std::string> files(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

struct Other : BaseModel<Other> {
  Linear tail{3, 2};
  Tensor forward(const Tensor& x, const Tensor&, Mode) const { return tail(x); }
  void members(Members& m) override { m("tail", tail); }
};

}  // namespace

TEST_CASE("Runner: a resumed training has the bits of an undisturbed one") {
  using Cfg = decltype(RunnerOptions::train_cfg);
  for (const Cfg& cfg :
       {Cfg(EpochBasedTrainLoop{.max_epochs = 3}), Cfg(IterBasedTrainLoop{.max_iters = 8, .val_interval = 3})}) {
    INFO("by " << (cfg.index() == 0 ? "epochs" : "iterations"));
    const TemporaryFolder whole_folder;
    SavedTraining whole({.train_cfg = cfg, .work_dir = whole_folder.path()});
    whole.train();
    const std::string expected = whole.state();
    // At an epoch's end in a window, at one that ends a window, in the middle of an epoch.
    for (const std::int64_t at : {3, 6, 5}) {
      INFO("interrupted after iteration " << at);
      const TemporaryFolder folder;
      const ContextScope scope(thread_context());
      std::string best;
      {
        SavedTraining first({.train_cfg = cfg, .work_dir = folder.path(), .hooks = {stop_at(at)}});
        first.train();
        CHECK(first.runner.iter() == at);
        best = first.runner.best_checkpoint();
      }
      SavedTraining second({.train_cfg = cfg, .work_dir = folder.path()});
      manual_seed(99);
      thread_context().random_stream = 77;
      REQUIRE(second.runner.resume());
      CHECK(second.runner.iter() == at);
      CHECK(second.runner.epoch() == at / 3);
      CHECK(second.runner.best_checkpoint() == best);
      second.train();
      CHECK(second.state() == expected);
    }
  }
}

TEST_CASE("Runner: resuming warns of no lost gradients, and nothing there is nothing to resume") {
  const TemporaryFolder folder;
  const RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .work_dir = folder.path()};
  SavedTraining none(options);
  CHECK(!none.runner.resume());
  RunnerOptions stopped = options;
  stopped.hooks = {stop_at(3)};
  SavedTraining(stopped).train();
  CapturedLog log;
  SavedTraining again(options);
  REQUIRE(again.runner.resume());
  again.train();
  CHECK(log.messages.empty());
}

TEST_CASE("Runner: the best checkpoint is the strictly best one's") {
  for (const Rule rule : {Rule::greater, Rule::less}) {
    const TemporaryFolder folder;
    Line model;
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
    const double sign = rule == Rule::greater ? 1 : -1;
    Prescribed metric{{std::nan(""), sign * 0.5, sign * 0.5, sign * 0.7, sign * 0.6, sign * 0.7}};
    std::string said;
    RunnerHook hook;
    hook.before_train_epoch = [&](RunnerCore& runner) { said += runner.best_checkpoint() + ' '; };
    Runner runner(model, optim,
                  {.train_cfg = EpochBasedTrainLoop{.max_epochs = 6},
                   .work_dir = folder.path(),
                   .checkpoint = {.interval = 0, .save_best = "acc/top1", .rule = rule, .save_last = false},
                   .hooks = {hook}});
    DataLoader loader(pairs(2), {.batch_size = 2});
    runner.train(loader, loader, metric);
    CHECK(said ==
          "  best_acc_top1_epoch_2.safetensors best_acc_top1_epoch_2.safetensors best_acc_top1_epoch_4.safetensors "
          "best_acc_top1_epoch_4.safetensors ");
    CHECK(runner.best_score() == sign * 0.7);
    CHECK(files(folder) == std::vector<std::string>{"best_acc_top1_epoch_4.safetensors", "scalars.json"});
    // It is the model of that epoch, and knows its score.
    Line best;
    OptimWrapper other(SGD(best.parameters(), {.lr = 0.1}));
    Runner second(best, other);
    second.resume(folder / "best_acc_top1_epoch_4.safetensors");
    CHECK(second.epoch() == 4);
    CHECK(second.best_score() == sign * 0.7);
  }
  Line model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
  const TemporaryFolder folder;
  Runner runner(model, optim, {.work_dir = folder.path(), .checkpoint = {.save_best = "mIoU"}});
  DataLoader loader(pairs(2), {.batch_size = 2});
  Prescribed metric{{1}};
  CHECK(message_of<InvalidArgument>([&] { runner.train(loader, loader, metric); }) ==
        "[Runner] expected save_best to be a metric out of (loss, acc/top1), got 'mIoU'");
}

TEST_CASE("Runner: checkpoints come in their interval, and the oldest go") {
  const auto left = [](const RunnerOptions& options, int resumed_at = 0) {
    const TemporaryFolder folder;
    write_bytes(folder / "epoch_0.safetensors", "of somebody else");
    for (const bool resumes : {false, true}) {
      if (resumes && resumed_at == 0) continue;
      Line model;
      OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
      RunnerOptions here = options;
      here.work_dir = folder.path();
      if (!resumes && resumed_at > 0) here.hooks = {stop_at(resumed_at)};
      Runner runner(model, optim, here);
      DataLoader loader(pairs(4), {.batch_size = 2});
      if (resumes) REQUIRE(runner.resume());
      runner.train(loader);
    }
    std::string names;
    for (const std::string& name : files(folder))
      if (name != "scalars.json" && name != "epoch_0.safetensors") names += name.substr(0, name.find('.')) + ' ';
    return names + read_bytes(folder / "last_checkpoint");
  };
  const EpochBasedTrainLoop five{.max_epochs = 5};
  CHECK(left({.train_cfg = five}) == "epoch_1 epoch_2 epoch_3 epoch_4 epoch_5 last_checkpoint epoch_5.safetensors\n");
  CHECK(left({.train_cfg = five, .checkpoint = {.interval = 2}}) ==
        "epoch_2 epoch_4 epoch_5 last_checkpoint epoch_5.safetensors\n");
  CHECK(left({.train_cfg = five, .checkpoint = {.interval = 2, .save_last = false}}) ==
        "epoch_2 epoch_4 last_checkpoint epoch_4.safetensors\n");
  CHECK(left({.train_cfg = five, .checkpoint = {.max_keep_ckpts = 2}}) ==
        "epoch_4 epoch_5 last_checkpoint epoch_5.safetensors\n");
  CHECK(left({.train_cfg = five, .checkpoint = {.max_keep_ckpts = 2}}, 6) ==
        "epoch_4 epoch_5 last_checkpoint epoch_5.safetensors\n");
  CHECK(left({.train_cfg = five, .checkpoint = {.interval = 4, .by_epoch = false, .save_last = false}}) ==
        "iter_4 iter_8 last_checkpoint iter_8.safetensors\n");
  CHECK(left({.train_cfg = IterBasedTrainLoop{.max_iters = 7}, .checkpoint = {.interval = 3}}) ==
        "iter_3 iter_6 iter_7 last_checkpoint iter_7.safetensors\n");
}

TEST_CASE("Runner: what does not fit is not resumed, and changes nothing") {
  const TemporaryFolder folder;
  const RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .work_dir = folder.path()};
  SavedTraining first(options);
  first.train();
  const std::string path = folder / "epoch_1.safetensors";

  Other model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}));
  const auto schedulers = [](OptimWrapper& of) {
    return std::vector<RunnerScheduler>{LrScheduler(of.optimizer(), StepLR{}),
                                        MomentumScheduler(of.optimizer(), StepLR{})};
  };
  const auto refusal = [&](auto& runner, const std::string& file) {
    return message_of<InvalidArgument>([&] { runner.resume(file); });
  };
  Runner other(model, optim, {.param_schedulers = schedulers(optim)});
  const std::string before = all_of(model.state_dict());
  CHECK(missing(refusal(other, path),
                {"[Runner] expected the model of this training", path, "head.weight", "tail.weight"}) == "");
  CHECK(all_of(model.state_dict()) == before);
  CHECK(missing(message_of<InvalidArgument>([&] { other.load_checkpoint(path); }), {"head.weight"}) == "");

  Line line;
  OptimWrapper no_momentum(SGD(line.parameters(), {.lr = 0.1}));
  Runner fewer(line, no_momentum);
  CHECK(missing(refusal(fewer, path), {"expected 0 schedulers", "with 2"}) == "");
  // The optimizer is the last to be asked: model and schedulers are put back.
  AdamW adam(line.parameters(), {.lr = 0.1});
  OptimWrapper other_optim(std::move(adam));
  Runner another(line, other_optim,
                 {.param_schedulers = {LrScheduler(other_optim.optimizer(), StepLR{}),
                                       MomentumScheduler(other_optim.optimizer(), StepLR{})}});
  const std::string line_before = all_of(line.state_dict());
  const std::string rates = all_of(another.options().param_schedulers[0].scheduler->state_dict());
  CHECK(missing(refusal(another, path), {"[Runner] expected the optimizer of this training", path}) == "");
  CHECK(all_of(line.state_dict()) == line_before);
  CHECK(all_of(another.options().param_schedulers[0].scheduler->state_dict()) == rates);
  CHECK(another.iter() == 0);
  another.load_checkpoint(path);  // the weights alone
  CHECK(all_of(line.state_dict()) == all_of(first.model.state_dict()));

  save_model(line, folder / "plain");
  CHECK(missing(refusal(fewer, folder / "plain"), {"[Runner] expected a checkpoint of a Runner", "plain"}) == "");
  CHECK(missing(message_of<Error>([&] { fewer.resume(folder / "none"); }), {"none"}) == "");
  // Another loader than the one it was trained with.
  SavedTraining longer({.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .work_dir = folder.path()});
  REQUIRE(longer.runner.resume());
  DataLoader short_loader(pairs(2), {.batch_size = 2});
  CHECK(missing(message_of<InvalidArgument>([&] { longer.runner.train(short_loader); }),
                {"3 batches", "got one of 1"}) == "");
}
