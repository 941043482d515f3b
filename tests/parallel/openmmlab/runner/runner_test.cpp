// What a Runner calls, in which order and in which mode, and what it logs.
#include <nlohmann/json.hpp>
#include <sstream>

#include "parallel/openmmlab/runner/runner_support.h"

using namespace runner_test;

namespace {

// Writes down what is called.
RunnerHook watching(std::string& said) {
  const auto say = [&said](const char* what) {
    return [&said, what](RunnerCore& runner) { said += cat(what, runner.epoch(), '.', runner.iter(), ' '); };
  };
  RunnerHook hook;
  hook.before_train = say("train");
  hook.after_train = say("done");
  hook.before_train_epoch = say("epoch");
  hook.after_train_epoch = say("/epoch");
  hook.before_train_iter = say("");
  hook.after_train_iter = [&said](RunnerCore&, const LogVars& log) { said += cat(log.begin()->first, ' '); };
  hook.before_val_epoch = say("val");
  hook.after_val_iter = say("v");
  hook.after_val_epoch = [&said](RunnerCore&, const NamedValues& metrics) {
    said += cat("samples=", metrics.at("samples").as_number(), ' ');
  };
  return hook;
}

struct RunTraining {
  Line model;
  OptimWrapper optim;
  explicit RunTraining(OptimWrapperOptions options = {})
      : optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}), std::move(options)) {}
};

}  // namespace

TEST_CASE("Runner: epochs, iterations and validations follow each other") {
  RunTraining t;
  std::string said;
  DataLoader loader(pairs(5), {.batch_size = 2}), val(pairs(3), {.batch_size = 2});
  SquaredError metric;
  Runner runner(t.model, t.optim,
                {.train_cfg = EpochBasedTrainLoop{.max_epochs = 4, .val_begin = 2, .val_interval = 3},
                 .hooks = {watching(said)}});
  runner.train(loader, val, metric);
  CHECK(said ==
        "train0.0 "
        "epoch0.0 0.0 loss 0.1 loss 0.2 loss /epoch1.3 "
        "epoch1.3 1.3 loss 1.4 loss 1.5 loss /epoch2.6 "
        "epoch2.6 2.6 loss 2.7 loss 2.8 loss /epoch3.9 val3.9 v3.9 v3.9 samples=3 "
        "epoch3.9 3.9 loss 3.10 loss 3.11 loss /epoch4.12 val4.12 v4.12 v4.12 samples=3 "
        "done4.12 ");
  CHECK(t.optim.inner_count() == 12);
  CHECK(t.optim.max_counts() == 12);
  CHECK(runner.max_iters() == 12);
  said.clear();
  runner.train(loader, val, metric);  // there is nothing left to do
  CHECK(said == "train4.12 done4.12 ");
}

TEST_CASE("Runner: iterations go on over the loader's end") {
  RunTraining t;
  std::string said;
  DataLoader loader(pairs(5), {.batch_size = 2}), val(pairs(3), {.batch_size = 3});
  SquaredError metric;
  Runner runner(
      t.model, t.optim,
      {.train_cfg = IterBasedTrainLoop{.max_iters = 5, .val_begin = 3, .val_interval = 2}, .hooks = {watching(said)}});
  runner.train(loader, val, metric);
  CHECK(said ==
        "train0.0 epoch0.0 0.0 loss 0.1 loss 0.2 loss /epoch1.3 "
        "epoch1.3 1.3 loss val1.4 v1.4 samples=3 1.4 loss val1.5 v1.5 samples=3 done1.5 ");
  CHECK(t.optim.inner_count() == 5);
}

TEST_CASE("Runner: an epoch's samples come in the order of that epoch") {
  const auto weights = [](bool with_runner) {
    RunTraining t;
    DataLoader loader(pairs(6), {.batch_size = 2, .shuffle = true, .seed = 3});
    manual_seed(4);
    if (with_runner) {
      Runner runner(t.model, t.optim, {.train_cfg = EpochBasedTrainLoop{.max_epochs = 3}});
      runner.train(loader);
    } else {
      for (int epoch = 0; epoch < 3; ++epoch)
        for (auto& batch : loader) t.model.train_step(batch, t.optim);
    }
    return all_parameters(t.model);
  };
  CHECK(weights(true) == weights(false));
}

TEST_CASE("Runner: validation runs in evaluation mode without gradients, and both come back") {
  RunTraining t;
  DataLoader loader(pairs(4), {.batch_size = 2}), val(pairs(2), {.batch_size = 2});
  SquaredError metric;
  std::string said;
  RunnerHook hook;
  hook.after_train_iter = [&](RunnerCore&, const LogVars&) { said += cat(t.model.trained, t.model.recorded, ' '); };
  hook.after_val_iter = [&](RunnerCore&) { said += cat("val ", t.model.trained, t.model.recorded, ' '); };
  hook.after_test_iter = [&](RunnerCore&) { said += cat("test ", t.model.trained, t.model.recorded, ' '); };
  Runner runner(t.model, t.optim, {.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .hooks = {hook}});
  runner.train(loader, val, metric);
  runner.test(val, metric);
  CHECK(said == "truetrue truetrue val falsefalse truetrue truetrue val falsefalse test falsefalse ");
  struct Broken : SquaredError {
    void process(const std::array<Tensor, 2>&, const std::vector<Tensor>&) { throw Error("no"); }
  } broken;
  CHECK(message_of<Error>([&] { runner.val(val, broken); }) == "no");
  CHECK(GradMode::enabled());
  CHECK(t.model.is_training());
  t.model.eval();  // what the program has set stays: parts of a model may be kept from training
  said.clear();
  Runner again(t.model, t.optim, {.hooks = {hook}});
  again.train(loader, val, metric);
  CHECK(said == "falsetrue falsetrue val falsefalse ");
}

TEST_CASE("Runner: accumulation is that of a plain loop, the short last window too") {
  RunTraining a({.accumulative_counts = 4}), b({.accumulative_counts = 4});
  DataLoader loader(pairs(6), {.batch_size = 2});
  manual_seed(4);
  Runner runner(a.model, a.optim, {.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}});
  runner.train(loader);  // 6 iterations: windows of 4 and 2
  manual_seed(4);
  loader.set_epoch(0);
  std::vector<std::array<Tensor, 2>> batches;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (auto& batch : loader) batches.push_back(batch);
  SGD plain(b.model.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (std::size_t i = 0; i < batches.size(); ++i) {
    auto output = b.model(batches[i][0], batches[i][1], Mode::loss);
    (output.loss().losses.at("loss_mse").as_tensor() / (i < 4 ? 4 : 2)).backward();
    if (i == 3 || i == 5) plain.step(), plain.zero_grad();
  }
  CHECK(all_parameters(a.model) == all_parameters(b.model));
}

TEST_CASE("Runner: schedulers step after their iterations and epochs") {
  RunTraining t;
  DataLoader loader(pairs(4), {.batch_size = 2});
  std::vector<double> rates, momenta;
  RunnerHook hook;
  hook.before_train_iter = [&](RunnerCore& runner) {
    rates.push_back(runner.optim_wrapper().get_lr()[0].second[0]);
    momenta.push_back(runner.optim_wrapper().get_momentum()[0].second[0]);
  };
  Runner runner(
      t.model, t.optim,
      {.train_cfg = EpochBasedTrainLoop{.max_epochs = 3},
       .param_schedulers = {LrScheduler(t.optim.optimizer(), ExponentialLR{.gamma = 0.5}),
                            {MomentumScheduler(t.optim.optimizer(), ExponentialLR{.gamma = 0.5}), {.by_epoch = false}}},
       .hooks = {hook}});
  runner.train(loader);
  CHECK(rates == Doubles{0.1, 0.1, 0.05, 0.05, 0.025, 0.025});
  CHECK(momenta == Doubles{0.9, 0.45, 0.225, 0.1125, 0.05625, 0.028125});
}

TEST_CASE("Runner: a training that is stopped ends after the iteration") {
  RunTraining t;
  DataLoader loader(pairs(6), {.batch_size = 2});
  RunnerHook hook;
  hook.after_train_iter = [](RunnerCore& runner, const LogVars&) {
    if (runner.iter() == 2) runner.stop_training();
  };
  int begun = 0;
  hook.before_train_epoch = [&](RunnerCore&) { ++begun; };
  Runner runner(t.model, t.optim, {.train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .hooks = {hook}});
  runner.train(loader);
  CHECK(runner.iter() == 2);
  runner.train(loader);  // from there
  CHECK(runner.iter() == 6);
  CHECK(begun == 2);  // going on in an epoch does not begin it again
}

TEST_CASE("Runner: logs have the means over their interval") {
  const TemporaryFolder folder;
  RunTraining t;
  DataLoader loader(pairs(10), {.batch_size = 2}), val(pairs(3), {.batch_size = 2});
  SquaredError metric;
  std::vector<double> losses;
  std::vector<std::string> lines;
  RunnerHook hook;
  hook.after_train_iter = [&](RunnerCore&, const LogVars& log) {
    losses.push_back(log.at("loss").as_tensor().item<double>());
  };
  Runner runner(t.model, t.optim,
                {.train_cfg = EpochBasedTrainLoop{.max_epochs = 1},
                 .work_dir = folder / "run",
                 .logger = {.interval = 2, .sink = [&](const std::string& line) { lines.push_back(line); }},
                 .hooks = {hook}});
  runner.train(loader, val, metric);

  std::vector<nlohmann::json> logged;
  std::istringstream file(read_bytes(folder / "run/scalars.json"));
  for (std::string line; std::getline(file, line);) logged.push_back(nlohmann::json::parse(line));
  REQUIRE(logged.size() == 4);
  for (std::size_t i = 0; i < 3; ++i) {
    const double mean = i < 2 ? (losses[2 * i] + losses[2 * i + 1]) / 2 : losses[4];
    CHECK(logged[i]["mode"] == "train");
    CHECK(logged[i]["epoch"] == 1);
    CHECK(logged[i]["iter"] == (i < 2 ? 2 * i + 2 : 5));
    CHECK(logged[i]["loss"] == mean);
    CHECK(logged[i]["lr"] == 0.1);
    CHECK(logged[i]["momentum"] == 0.9);
    for (const char* name : {"loss_mse", "size", "time", "data_time", "eta"}) CHECK(logged[i].contains(name));
    CHECK(logged[i]["time"] >= logged[i]["data_time"]);
  }
  CHECK(logged[3]["mode"] == "val");
  CHECK(logged[3]["samples"] == 3);
  CHECK(logged[3].contains("mse"));
  REQUIRE(lines.size() == 4);
  CHECK(missing(lines[0], {"Epoch(train) [1][2/5]  lr: 1.0000e-01  momentum: 9.0000e-01  eta: 0:00:00", "  loss: "}) ==
        "");
  CHECK(missing(lines[3], {"Epoch(val) [1][2/2]  mse: ", "samples: 3"}) == "");
}

TEST_CASE("Runner: what makes no sense is refused") {
  RunTraining t;
  const auto refusal = [&](RunnerOptions options) {
    return message_of<InvalidArgument>([&] { Runner(t.model, t.optim, std::move(options)); });
  };
  CHECK(refusal({.train_cfg = EpochBasedTrainLoop{.max_epochs = 0}}) == "[Runner] expected max_epochs above 0, got 0");
  CHECK(refusal({.train_cfg = IterBasedTrainLoop{.max_iters = -1}}) == "[Runner] expected max_iters above 0, got -1");
  CHECK(missing(refusal({.train_cfg = EpochBasedTrainLoop{.val_interval = 0}}), {"val_interval above 0, got 0"}) == "");
  CHECK(missing(refusal({.logger = {.interval = 0}}), {"interval above 0, got 0"}) == "");
  CHECK(missing(refusal({.checkpoint = {.save_best = "mse"}}), {"work_dir", "mse"}) == "");

  Runner runner(t.model, t.optim);
  DataLoader none(pairs(3), {.batch_size = 4, .drop_last = true});
  CHECK(missing(message_of<InvalidArgument>([&] { runner.train(none); }), {"[Runner]", "empty"}) == "");
  struct Words : SquaredError {
    NamedValues compute_metrics(const std::vector<double>&) const override { return {{"verdict", "fine"}}; }
  } words;
  DataLoader val(pairs(2), {.batch_size = 2});
  CHECK(missing(message_of<InvalidArgument>([&] { runner.val(val, words); }), {"numbers", "verdict", "string"}) == "");
}
