// What a Runner leaves in its folder, what becomes of it after a kill, and what others read of it.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/parallel/openmmlab/mm_data_parallel.h"
#include "parallel/openmmlab/runner/runner_support.h"

using namespace runner_test;

namespace {

std::string files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += name.substr(0, name.find(".safetensors")) + ' ';
  return text;
}

struct LoggedTraining {
  Line model;
  OptimWrapper optim{SGD(model.parameters(), {.lr = 0.1, .momentum = 0.5})};
  Prescribed metric{{0.1, 0.4, 0.2, 0.3, 0.9, 0.8}};
  DataLoader<Pairs> loader{pairs(4), {.batch_size = 2}}, val_loader{pairs(2), {.batch_size = 2}};
  Runner<Line> runner;
  explicit LoggedTraining(RunnerOptions options) : runner(model, optim, std::move(options)) {}
  void train() { runner.train(loader, val_loader, metric); }
};

}  // namespace

TEST_CASE("a Runner's checkpoint is loaded for inference, by load_model and by a Runner without an optimizer") {
  const TemporaryFolder folder;
  LoggedTraining training({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .work_dir = folder.path()});
  training.train();
  const std::string path = folder / "epoch_1.safetensors", expected = all_of(training.model.state_dict());
  const auto fresh = [] {
    Line line;
    const NoGrad no_grad;
    line.head.weight.tensor().fill_(9);
    return line;
  };
  Line net = fresh();
  load_model(net, path);
  CHECK(all_of(net.state_dict()) == expected);
  net = fresh();
  CHECK(load_model(net, path, {.strict = false}).complete());
  CHECK(all_of(net.state_dict()) == expected);
  MMDataParallel wrapper(fresh(), {.devices = {Device::host(0)}});
  load_model(wrapper, path);
  CHECK(all_of(wrapper.module().state_dict()) == expected);

  net = fresh();
  Runner runner(net);
  CHECK(runner.load_checkpoint(path).complete());
  CHECK(all_of(net.state_dict()) == expected);
  SquaredError metric;
  CHECK(runner.test(training.val_loader, metric).at("samples").as_number() == 2);
  const std::string refusal = "expected a Runner with an OptimWrapper, got one that only evaluates";
  CHECK(missing(message_of<InvalidArgument>([&] { runner.train(training.loader); }), {refusal}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { runner.resume(path); }), {refusal}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { runner.save_checkpoint(folder / "x"); }), {refusal}) == "");
  // What save_model wrote is a model too.
  save_model(training.model, folder / "plain.safetensors");
  net = fresh();
  Runner(net).load_checkpoint(folder / "plain.safetensors");
  CHECK(all_of(net.state_dict()) == expected);
}

TEST_CASE("a file that has nothing of the model, or a part, does not pass in silence") {
  const TemporaryFolder folder;
  LoggedTraining training({.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}, .work_dir = folder.path()});
  training.train();
  const std::string path = folder / "epoch_1.safetensors";
  struct Other : BaseModel<Other> {
    Affine tail{3, 2, 1};
    void members(Members& m) override { m("tail", tail); }
  } other;
  const std::string before = all_of(other.state_dict());
  for (const bool strict : {true, false}) {
    CHECK(missing(message_of<InvalidArgument>([&] { load_model(other, path, strict); }),
                  {path, "missing: tail.weight, tail.bias", "unexpected: head.bias, head.weight"}) == "");
    CHECK(missing(message_of<InvalidArgument>([&] { load_model(other, path, {.strict = strict}); }), {"tail.weight"}) ==
          "");
    CHECK(missing(message_of<InvalidArgument>([&] { Runner(other).load_checkpoint(path, strict); }), {"tail.weight"}) ==
          "");
    CHECK(missing(message_of<InvalidArgument>([&] { other.load_state_dict(training.model.state_dict(), strict); }),
                  {"[load_state_dict]", "missing: tail.weight", "unexpected: head.weight"}) == "");
  }
  CHECK(all_of(other.state_dict()) == before);

  struct More : BaseModel<More> {
    Linear head = Line().head;
    Affine tail{3, 2, 1};
    void members(Members& m) override { m("head", head), m("tail", tail); }
  } more;
  CapturedLog log;
  Runner runner(more);
  CHECK(missing(message_of<InvalidArgument>([&] { runner.load_checkpoint(path); }), {"tail.weight"}) == "");
  const LoadReport report = runner.load_checkpoint(path, false);
  CHECK(report.missing == std::vector<std::string>{"tail.weight", "tail.bias"});
  CHECK(report.unexpected.empty());
  REQUIRE(log.messages.size() == 1);
  CHECK(missing(log.messages[0], {"does not fit the model", "missing: tail.weight, tail.bias"}) == "");
}

TEST_CASE("what is better is inferred from the metric's name") {
  for (const char* metric :
       {"acc/top1", "accuracy", "coco/bbox_mAP", "mIoU", "AR@100", "Precision", "auc", "AP", "AP50", "voc/AP", "F1"})
    CHECK(infer_rule(metric) == Rule::greater);
  for (const char* metric : {"loss", "val_Loss", "loss_cls", "error"}) CHECK(infer_rule(metric) == Rule::less);
  for (const char* metric : {"mse", "acc_loss", "score", "mape", "capped", "shape", ""})
    CHECK(missing(message_of<InvalidArgument>([&] { infer_rule(metric); }),
                  {"expected a rule for the metric", metric, "Rule::less"}) == "");
  const TemporaryFolder folder;
  const auto refusal = [&](SaveBest metrics) {
    return message_of<InvalidArgument>(
        [&] { LoggedTraining({.work_dir = folder.path(), .checkpoint = {.save_best = std::move(metrics)}}); });
  };
  CHECK(missing(refusal("mse"), {"a rule for the metric 'mse'"}) == "");
  CHECK(missing(refusal({"loss", "score"}), {"a rule for the metric 'score'"}) == "");
}

TEST_CASE("Runner: the best of several metrics, and of whichever comes first") {
  const auto best = [](CheckpointHook hook) {
    const TemporaryFolder folder;
    hook.interval = 0;
    hook.save_last = false;
    LoggedTraining training(
        {.train_cfg = EpochBasedTrainLoop{.max_epochs = 6}, .work_dir = folder.path(), .checkpoint = hook});
    training.train();
    return files(folder.path()) + cat(training.runner.best_score().value_or(-1));
  };
  CHECK(best({.save_best = "acc/top1"}) == "best_acc_top1_epoch_5 scalars.json 0.9");
  // The loss stays at 1: its first value is the best, as nothing is better.
  CHECK(best({.save_best = {"loss", "acc/top1"}}) == "best_acc_top1_epoch_5 best_loss_epoch_1 scalars.json 1");
  CHECK(best({.save_best = "auto"}) == "best_loss_epoch_1 scalars.json 1");
  CHECK(best({.save_best = "acc/top1", .rule = Rule::less}) == "best_acc_top1_epoch_1 scalars.json 0.1");
}

TEST_CASE("Runner: a training that is killed between writing and deleting leaves no file for ever") {
  // A new file is written, and the old one, which is a folder now that cannot be deleted, stays: as after a kill.
  const TemporaryFolder folder;
  const RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 6},
                              .work_dir = folder.path(),
                              .checkpoint = {.max_keep_ckpts = 1, .save_best = "acc/top1"}};
  const auto keep = [&](const std::string& name) {
    std::filesystem::rename(folder / name, folder / (name + ".aside"));
    std::filesystem::create_directory(folder / name);
    write_bytes(folder / (name + "/x"), "");
  };
  const auto release = [&](const std::string& name) {
    std::filesystem::remove_all(folder / name);
    std::filesystem::rename(folder / (name + ".aside"), folder / name);
  };
  {
    RunnerOptions first = options;
    RunnerHook hook;
    hook.before_train_epoch = [&](RunnerCore& runner) {
      if (runner.epoch() == 1) keep("epoch_1.safetensors"), keep("best_acc_top1_epoch_1.safetensors");
      if (runner.epoch() == 2) runner.stop_training();
    };
    first.hooks = {hook, stop_at(4)};
    LoggedTraining(first).train();
  }
  release("epoch_1.safetensors"), release("best_acc_top1_epoch_1.safetensors");
  CHECK(files(folder.path()) ==
        "best_acc_top1_epoch_1 best_acc_top1_epoch_2 epoch_1 epoch_2 last_checkpoint scalars.json ");
  LoggedTraining second(options);
  second.metric.next = 2;
  REQUIRE(second.runner.resume());
  second.train();
  CHECK(files(folder.path()) == "best_acc_top1_epoch_5 epoch_6 last_checkpoint scalars.json ");
}

TEST_CASE("Runner: a checkpoint that cannot be written supersedes nothing") {
  const TemporaryFolder folder;
  RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 4},
                        .work_dir = folder.path(),
                        .checkpoint = {.max_keep_ckpts = 1, .save_best = "acc/top1"}};
  // Files are written in the order best 1, epoch 1, best 2, epoch 2, …
  const auto train = [&](LoggedTraining& training, std::vector<double> scores) {
    training.metric = {std::move(scores)};
    try {
      training.train();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  int saves = 0;
  RunnerHook full;
  full.before_save_checkpoint = [&](RunnerCore&, Safetensors&) {
    if (++saves == 3 || saves == 4 || saves == 6) throw Error("disk is full");
  };
  options.hooks = {full};
  LoggedTraining training(options);
  CHECK(train(training, {0.1, 0.4}) == "disk is full");  // best 2
  CHECK(training.runner.best_checkpoint() == "best_acc_top1_epoch_1.safetensors");
  CHECK(training.runner.best_score() == 0.1);
  CHECK(files(folder.path()) == "best_acc_top1_epoch_1 epoch_1 last_checkpoint scalars.json ");
  CHECK(train(training, {0.1}) == "disk is full");  // epoch 3: no better than epoch 1
  CHECK(train(training, {0.9}) == "disk is full");  // epoch 4, after best 4
  CHECK(files(folder.path()) == "best_acc_top1_epoch_4 epoch_1 last_checkpoint scalars.json ");

  options.hooks.clear();
  LoggedTraining second(options);
  REQUIRE(second.runner.resume());
  CHECK(second.runner.epoch() == 1);
  CHECK(train(second, {0.2, 0.1, 0.1}) == "");
  CHECK(second.runner.best_checkpoint() == "best_acc_top1_epoch_2.safetensors");
  CHECK(files(folder.path()) == "best_acc_top1_epoch_2 best_acc_top1_epoch_4 epoch_4 last_checkpoint scalars.json ");
}

TEST_CASE("Runner: a file that a killed process was writing goes when the training is resumed") {
  const TemporaryFolder folder;
  RunnerOptions options{
      .train_cfg = EpochBasedTrainLoop{.max_epochs = 2}, .work_dir = folder.path(), .hooks = {stop_at(2)}};
  LoggedTraining(options).train();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  // What was written today may be another machine's, whose processes have numbers of their own.
  const std::string today = folder / cat(".lockstep-", child, "-1.tmp");
  write_bytes(today, "half");
  for (const std::string& name :
       {cat(".lockstep-", child, "-0.tmp"), cat(".lockstep-", ::getpid(), "-77.tmp"), std::string(".lockstep-x.tmp")}) {
    write_bytes(folder / name, "half");
    std::filesystem::last_write_time(folder / name,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  }
  options.hooks.clear();
  LoggedTraining second(options);
  REQUIRE(second.runner.resume());
  CHECK(exists(today));
  std::filesystem::remove(today);
  CHECK(files(folder.path()) ==
        cat(".lockstep-", ::getpid(), "-77.tmp .lockstep-x.tmp epoch_1 last_checkpoint scalars.json "));
}

TEST_CASE("Runner: scalars.json has every iteration once after a resume") {
  const TemporaryFolder folder;
  RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 3},
                        .work_dir = folder.path(),
                        .logger = {.interval = 1},
                        .checkpoint = {.interval = 1, .save_last = false}};
  {
    RunnerOptions first = options;
    first.hooks = {stop_at(5)};  // after the last checkpoint, that of epoch 2
    LoggedTraining(first).train();
  }
  const std::string path = folder / "scalars.json";
  write_bytes(path, read_bytes(path) + "{\"mode\":\"tra");  // killed in the middle of a line
  LoggedTraining second(options);
  REQUIRE(second.runner.resume());
  CHECK(read_bytes(path).ends_with("tra"));  // nothing is written before there is something to write
  second.train();
  std::string seen;
  std::istringstream file(read_bytes(path));
  for (std::string line; std::getline(file, line);) {
    const auto object = nlohmann::json::parse(line);
    seen += cat(object["mode"].get<std::string>().substr(0, 1), object["iter"].get<int>(), ' ');
  }
  CHECK(seen == "t1 t2 v2 t3 t4 v4 t5 t6 v6 ");
}

TEST_CASE("Runner: errors of files say what the system says") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  const auto failure = [&](auto&& work) { return message_of<Error>(work); };
  LoggedTraining in_file({.work_dir = folder / "file"});
  CHECK(missing(failure([&] { in_file.train(); }), {"scalars.json", "Not a directory"}) == "");
  CHECK(missing(failure([&] { in_file.runner.save_checkpoint(folder / "file/x"); }), {"file/x", "Not a directory"}) ==
        "");
  CHECK(!in_file.runner.resume());  // there is no checkpoint
  std::filesystem::create_directories(folder / "loop");
  std::filesystem::create_symlink("last_checkpoint", folder / "loop/last_checkpoint");
  LoggedTraining in_circles({.work_dir = folder / "loop"});
  CHECK(missing(failure([&] { in_circles.runner.resume(); }),
                {"last_checkpoint", "Too many levels of symbolic links"}) == "");
  // A folder where a file is to be.
  std::filesystem::create_directories(folder / "run/last_checkpoint");
  std::filesystem::create_directories(folder / "run/scalars.json");
  LoggedTraining blocked({.work_dir = folder / "run"});
  CHECK(missing(failure([&] { blocked.train(); }), {"scalars.json", "Is a directory"}) == "");
  std::filesystem::remove(folder / "run/scalars.json");
  LoggedTraining no_name({.work_dir = folder / "run"});
  CHECK(missing(failure([&] { no_name.train(); }), {"last_checkpoint", "Is a directory"}) == "");
  std::filesystem::remove(folder / "run/last_checkpoint");
  write_bytes(folder / "run/last_checkpoint", "");
  CHECK(missing(failure([&] { no_name.runner.resume(); }), {"last_checkpoint", "an empty file"}) == "");
}
