// Runners of several ranks: the same bits on all of them, and the metrics of the whole data set.
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/parallel/openmmlab/mm_fully_sharded_data_parallel.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "parallel/openmmlab/runner/runner_support.h"

using namespace runner_test;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t kSamples = 7, kValSamples = 5;

// Two ranks that share the data. Returns what each has at the end.
std::vector<std::string> train(const std::string& folder, std::int64_t stop_at = 0, bool resumes = false,
                               int ranks = 2) {
  return run_ranks(ranks, [=](Communicator& communicator) {
    manual_seed(5);
    thread_context().random_stream = static_cast<std::uint64_t>(communicator.rank()) + 1;  // masks of its own
    MMDistributedDataParallel model(Line(), communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05, .momentum = 0.9}), {.accumulative_counts = 3});
    DataLoader loader(pairs(kSamples), DistributedSampler(kSamples, communicator.rank(), communicator.size()),
                      {.batch_size = 1});
    DataLoader val(pairs(kValSamples, 30),
                   DistributedSampler(kValSamples, communicator.rank(), communicator.size(), {.shuffle = false}),
                   {.batch_size = 2});
    SquaredError metric;
    RunnerHook hook;
    hook.after_train_iter = [=](RunnerCore& runner, const LogVars&) {
      if (runner.iter() == stop_at) runner.stop_training();
    };
    Runner runner(model, optim,
                  {.train_cfg = EpochBasedTrainLoop{.max_epochs = 2},
                   .work_dir = folder,
                   .logger = {.interval = 2},
                   .checkpoint = {.save_best = "mse", .rule = Rule::less},
                   .hooks = {hook}});
    if (resumes) runner.resume();
    runner.train(loader, val, metric);
    const NamedValues metrics = runner.val(val, metric);
    return cat(all_of(model.module().state_dict()), all_of(optim.state_dict()), runner.iter(), " best ",
               runner.best_score().value_or(-1), " mse ", metrics.at("mse").as_number(), " of ",
               metrics.at("samples").as_number());
  });
}

}  // namespace

TEST_CASE("Runner: ranks end with the same bits and the metrics of the whole set") {
  const TemporaryFolder folder;
  const std::vector<std::string> states = train(folder.path());
  CHECK(states[0] == states[1]);
  CHECK(missing(states[0], {" of 5"}) == "");

  // One rank alone has the same metric for that model, whatever the sampler had to repeat.
  Line model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05, .momentum = 0.9}));
  Runner runner(model, optim);
  runner.load_checkpoint(folder / "epoch_2.safetensors");
  DataLoader val(pairs(kValSamples, 30), {.batch_size = 5});
  SquaredError metric;
  const double alone = runner.val(val, metric).at("mse").as_number();
  CHECK(missing(states[0], {cat(" mse ", alone)}) == "");
}

TEST_CASE("Runner: a loss that is logged is the mean over the ranks") {
  const TemporaryFolder folder;
  const auto losses = run_ranks(2, [&](Communicator& communicator) {
    MMDistributedDataParallel model(Line(), communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
    DataLoader loader(pairs(4), DistributedSampler(4, communicator.rank(), 2), {.batch_size = 1});
    Doubles own;
    RunnerHook hook;
    hook.after_train_iter = [&](RunnerCore&, const LogVars& log) {
      own.push_back(log.at("loss").as_tensor().item<double>());
    };
    Runner runner(model, optim, {.work_dir = folder.path(), .logger = {.interval = 2}, .hooks = {hook}});
    runner.train(loader);
    return own;
  });
  CHECK(losses[0] != losses[1]);
  std::istringstream file(read_bytes(folder / "scalars.json"));
  std::string line, more;
  REQUIRE(std::getline(file, line));
  CHECK(!std::getline(file, more));  // one rank writes
  CHECK(nlohmann::json::parse(line)["loss"].get<double>() ==
        Approx((losses[0][0] + losses[0][1] + losses[1][0] + losses[1][1]) / 4).epsilon(1e-12));
}

TEST_CASE("Runner: resumed ranks have the bits of undisturbed ones, in a window of accumulation too") {
  const TemporaryFolder whole_folder;
  const std::vector<std::string> whole = train(whole_folder.path());
  for (const std::int64_t at : {4, 3, 6}) {  // the end of an epoch in a window; of a window; the middle of both
    INFO("interrupted after iteration " << at);
    const TemporaryFolder folder;
    train(folder.path(), at);
    CHECK(train(folder.path(), 0, true) == whole);
  }
}

TEST_CASE("Runner: a checkpoint has the buckets of the ranks, and resumed ones take them over") {
  const TemporaryFolder folder;
  const std::string path = folder / "own.safetensors", old = folder / "old.safetensors",
                    bad = folder / "bad.safetensors";
  // Ranks that train `iterations` with the options, after the checkpoint where one is given, and then write one.
  const auto states = [&](const MMDistributedDataParallelOptions& options, const std::string& from) {
    return run_ranks(2, [&](Communicator& communicator) {
      MMDistributedDataParallel model(Line(), communicator, options);
      OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
      Runner runner(model, optim, {.train_cfg = IterBasedTrainLoop{.max_iters = 2}});
      std::string refused;
      if (!from.empty()) try {
          runner.resume(from);
        } catch (const InvalidArgument& error) {
          refused = error.what();
        }
      const std::string resumed = to_string(model.bucket_state());
      if (from.empty()) {
        DataLoader loader(pairs(4), DistributedSampler(4, communicator.rank(), 2), {.batch_size = 1});
        runner.train(loader);
        runner.save_checkpoint(path);
      }
      return cat(resumed, '/', model.logging_data().bucket_cap_bytes, '/', runner.iter(), refused);
    });
  };
  const std::string kMiB = cat(1 << 20, ' ');
  CHECK(states({.bucket_cap_mb = 2}, "") == std::vector(2, cat(kMiB, 2 << 20, ": /", 2 << 20, "/2")));
  CHECK(load_safetensors(path).metadata.at("ddp.buckets") == cat(kMiB, 2 << 20, ": 1 0"));
  CHECK(states({.bucket_cap_mb = kAutoBucketCap}, path) == std::vector(2, cat(kMiB, 2 << 20, ": 1 0/", 2 << 20, "/2")));
  // Files of before have no such entry.
  Safetensors file = load_safetensors(path);
  file.metadata.erase("ddp.buckets");
  save_safetensors(old, file.tensors, file.metadata);
  CHECK(states({}, old) == std::vector(2, cat(kMiB, 25 << 20, ": /", 25 << 20, "/2")));
  for (const std::string entry : {"1048576 2097152: 2 1 0", "large"}) {
    file.metadata["ddp.buckets"] = entry;
    save_safetensors(bad, file.tensors, file.metadata);
    for (const std::string& said : states({}, bad))  // nothing is taken over
      CHECK(missing(said, {cat(kMiB, 25 << 20, ": /", 25 << 20, "/0"), "expected"}) == "");
  }
  // Whoever takes over the model alone has buckets of its own, and nobody asks what the file says of others.
  CHECK(run_ranks(2, [&](Communicator& communicator) {
          MMDistributedDataParallel model(Line(), communicator);
          OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
          Runner runner(model, optim);
          for (const std::string& file_path : {path, bad}) runner.load_checkpoint(file_path);
          return to_string(model.bucket_state());
        }) == std::vector(2, cat(kMiB, 25 << 20, ": ")));
}

TEST_CASE("Runner: one rank may evaluate alone") {
  const auto said = run_ranks(2, [](Communicator& communicator) {
    MMDistributedDataParallel model(Line(), communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
    Runner runner(model, optim);
    DataLoader val(pairs(3), {.batch_size = 1});
    struct Count {
      int batches = 0;
      void process(const std::array<Tensor, 2>&, const std::vector<Tensor>&) { ++batches; }
      NamedValues evaluate() const { return {{"batches", batches}}; }
    } count;
    const NamedValues metrics = runner.val(val, count);
    return cat(count.batches, " of ", metrics.at("batches").as_number());
  });
  CHECK(said == std::vector<std::string>{"3 of 3", "0 of 3"});
}

TEST_CASE("Runner: all ranks evaluate with rank 0's buffers") {
  struct Normed : BaseModel<Normed> {
    BatchNorm1d norm = [] {
      const DefaultDType dtype(DType::f64);
      return BatchNorm1d(3);
    }();
    ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& x, const Tensor& y, Mode mode) const {
      if (mode == Mode::predict) return std::vector<Tensor>{norm(x).narrow(1, 0, 2)};
      return Losses{{"loss", mse_loss(norm(x).narrow(1, 0, 2), y)}};
    }
    void members(Members& m) override { m("norm", norm); }
  };
  const auto metrics = run_ranks(2, [](Communicator& communicator) {
    MMDistributedDataParallel model(Normed(), communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
    DataLoader loader(pairs(8), DistributedSampler(8, communicator.rank(), 2), {.batch_size = 2});
    DataLoader val(pairs(6), DistributedSampler(6, communicator.rank(), 2, {.shuffle = false}), {.batch_size = 3});
    DataLoader everything(pairs(6), {.batch_size = 6});
    SquaredError metric;
    Runner runner(model, optim);
    runner.train(loader);
    const double shared = runner.val(val, metric).at("mse").as_number();
    const NoGrad no_grad;
    const TrainingScope evaluating(false);
    for (auto& batch : everything) metric.process(batch, model.val_step(batch));
    return std::pair{shared, metric.evaluate(6, nullptr).at("mse").as_number()};
  });
  CHECK(metrics[0].first == metrics[1].first);
  CHECK(metrics[0].first == Approx(metrics[0].second).epsilon(1e-12));
}

TEST_CASE("Runner: what the ranks do not agree on is an error on all of them") {
  const auto run = [](std::int64_t samples_of_rank_1, bool shares) {
    return messages_of_ranks(2, [=](Communicator& communicator) {
      MMDistributedDataParallel model(Line(), communicator);
      OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
      Runner runner(model, optim);
      DataLoader loader(pairs(communicator.rank() == 0 ? 4 : samples_of_rank_1), {.batch_size = 2});
      SquaredError metric;
      if (shares)
        runner.val(loader, metric);
      else
        runner.train(loader);
    });
  };
  for (const std::string& message : run(6, false))
    CHECK(missing(message, {"[Runner]", "2 batches", "on rank 0", "3 batches", "on rank 1"}) == "");
  for (const std::string& message : run(4, true))
    CHECK(missing(message, {"[Runner]", "4 samples", "got 8", "DistributedSampler"}) == "");

  // A folder that cannot be made: what rank 0 throws, all throw.
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
    MMDistributedDataParallel model(Line(), communicator);
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
    Runner runner(model, optim);
    runner.save_checkpoint(folder / "file/in/it");
  });
  CHECK(missing(messages[0], {"file/in/it"}) == "");
  CHECK(missing(messages[1], {"rank 0", "file/in/it"}) == "");

  // A checkpoint of two ranks is none of one.
  train(folder / "run", 4);
  Line model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05, .momentum = 0.9}));
  Runner runner(model, optim);
  CHECK(missing(message_of<InvalidArgument>([&] { runner.resume(folder / "run/epoch_1.safetensors"); }),
                {"expected 1 ranks", "with 2"}) == "");
}

TEST_CASE("Runner: what rank 0 has parts of alone is refused before a training that would keep it") {
  const auto said = [](bool zero, bool keeps) {
    const TemporaryFolder folder;
    return messages_of_ranks(2, [&](Communicator& communicator) {
      DataLoader loader(pairs(kSamples), DistributedSampler(kSamples, communicator.rank(), communicator.size()),
                        {.batch_size = 1});
      RunnerOptions options{.train_cfg = EpochBasedTrainLoop{.max_epochs = 1}};
      if (keeps) options.work_dir = folder.path();
      const auto train = [&](auto& model, auto& optim) {
        Runner runner(model, optim, options);
        if (!keeps) {
          const std::string file = folder / "one.safetensors";
          for (const std::string& refused : {message_of<NotSupported>([&] { runner.save_checkpoint(file); }),
                                             message_of<NotSupported>([&] { runner.resume(file); })})
            LOCKSTEP_CHECK(refused.starts_with("[Runner]"), "expected a refusal, got ", refused);
        }
        runner.train(loader);
      };
      if (zero) {
        MMDistributedDataParallel model(Line(), communicator);
        OptimWrapper optim(std::make_unique<ZeroRedundancyOptimizer<AdamW>>(AdamW(model.parameters()), communicator));
        train(model, optim);
      } else {
        MMFullyShardedDataParallel model(Line(), communicator);
        OptimWrapper optim(SGD(model.parameters(), {.lr = 0.05}));
        train(model, optim);
      }
    });
  };
  for (const bool zero : {true, false}) {
    for (const std::string& message : said(zero, false)) CHECK(message == "");
    for (const std::string& message : said(zero, true))
      CHECK_THAT(message, Contains("[Runner]") && Contains("CheckpointWriter") &&
                              Contains(zero ? "ZeroRedundancyOptimizer" : "a part of 'head.weight'"));
  }
}
