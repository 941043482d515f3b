// Learns to find shapes in images of different sizes: data containers, a model that makes its own steps, ranks that
// train it and devices that test it.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"
#include "lockstep/parallel/openmmlab/runner/runner.h"
#include "support/curve.h"
#include "support/picture.h"
#include "support/progress.h"
#include "support/segmenter.h"
#include "support/shapes_options.h"

namespace example {
namespace {

using namespace lockstep;

constexpr std::int64_t kFirstVal = 1'000'000, kFirstTest = 2'000'000, kValImages = 32, kTestBatch = 8;

template <class... Values>
void say(const char* pattern, Values... values) {
  std::printf("%s\n", format(pattern, values...).c_str());
  std::fflush(stdout);
}

// What a checkpoint must have been made with.
std::map<std::string, std::string> setting(const ShapesOptions& o, int ranks) {
  return {{"model", "detect_shapes"},
          {"ranks", std::to_string(ranks)},
          {"epochs", std::to_string(o.epochs)},
          {"images", std::to_string(o.images)},
          {"batch_size", std::to_string(o.batch_size)},
          {"width", std::to_string(o.width)},
          {"lr", format("%.17g", o.learning_rate)},
          {"seed", std::to_string(o.seed)}};
}

// One rank's training. Returns the model, on cpu.
Segmenter train(const ShapesOptions& o, Communicator& communicator) {
  const int rank = communicator.rank(), ranks = communicator.size();
  if (o.batch_size % ranks != 0)
    throw UsageError(cat("--batch-size: expected a multiple of the ", ranks, " ranks, got ", o.batch_size));
  if (o.images < o.batch_size)
    throw UsageError(cat("--images: expected at least the ", o.batch_size, " of a batch, got ", o.images));
  const auto seed = static_cast<std::uint64_t>(o.seed);
  const std::int64_t share = o.batch_size / ranks;
  const DataLoaderOptions loading{.seed = seed, .workers = static_cast<int>(o.workers)};

  // A batch is one group: what this rank's device is to have.
  DataLoader loader(
      Shapes{seed, 0, o.images, true},
      BatchSampler(DistributedSampler(o.images, rank, ranks, {.seed = seed, .drop_last = true}), share, true), loading,
      Collate{.samples_per_device = share});
  DataLoader val_loader(Shapes{seed, kFirstVal, kValImages},
                        BatchSampler(DistributedSampler(kValImages, rank, ranks, {.shuffle = false}), kTestBatch),
                        loading, Collate{.samples_per_device = kTestBatch});

  manual_seed(seed);
  MMDistributedDataParallel model(Segmenter(o.width), communicator);
  OptimWrapper optim(AdamW(model.parameters(), {.lr = o.learning_rate}), {.clip_grad = ClipGrad{.max_norm = 5}});
  // Up in a few steps, level for most of the time, and down to a twentieth in the last third.
  const std::int64_t steps = o.epochs * loader.size(), up = std::min<std::int64_t>(20, steps / 3), down = steps / 3;
  const ChainedScheduler schedule{
      {LinearLR{.start_factor = 0.1, .total_iters = up + 1},
       SequentialLR{{ConstantLR{.factor = 1}, LinearLR{.start_factor = 1, .end_factor = 0.05, .total_iters = down + 1}},
                    {steps - down}}}};

  const bool chatty = rank == 0 && !o.quiet && !o.json;
  std::int64_t parameters = 0;
  for (const Parameter& parameter : model.parameters()) parameters += element_count(parameter.shape());
  ProgressBar bar(steps, chatty && !o.no_progress);
  RunnerHook hook;
  hook.before_train = [&](RunnerCore& runner) {
    if (chatty)
      say("%lld images, %lld parameters; %d ranks (%s) on %s%s", static_cast<long long>(o.images),
          static_cast<long long>(parameters), ranks, communicator.backend(),
          to_string(communicator.device().type()).c_str(),
          runner.epoch() > 0 ? format("; resumed after epoch %lld", static_cast<long long>(runner.epoch())).c_str()
                             : "");
  };
  std::vector<double> losses;  // this rank's
  hook.after_train_iter = [&](RunnerCore& runner, const LogVars& log) {
    bar.update(runner.iter(), "steps");
    if (rank == 0 && !o.output.empty()) losses.push_back(log.at("loss").as_tensor().item<double>());
  };
  hook.after_train_epoch = [&](RunnerCore& runner) {
    if (runner.epoch() == o.stop_after) runner.stop_training();
  };
  const auto line = [&](const std::string& text) {
    bar.clear();
    say("%s", text.c_str());
  };
  MeanIoU metric;
  RunnerOptions options;
  options.train_cfg =
      EpochBasedTrainLoop{.max_epochs = o.epochs, .val_interval = std::max<std::int64_t>(1, o.epochs / 4)};
  options.work_dir = o.checkpoint;
  options.param_schedulers = {{LrScheduler(optim.optimizer(), schedule), {.by_epoch = false}}};
  options.logger.interval = loader.size();
  if (chatty) options.logger.sink = line;
  options.checkpoint.max_keep_ckpts = 2;
  options.hooks = {hook};
  options.metadata = setting(o, ranks);
  Runner runner(model, optim, options);
  if (o.resume) runner.resume();
  runner.train(loader, val_loader, metric);
  bar.clear();
  if (!losses.empty()) curve(losses).save((std::filesystem::path(o.output) / "losses.png").string());
  communicator.barrier();  // an error of another rank is this one's too
  Segmenter trained = deep_copy(model.module());
  trained.to(Device::cpu());
  return trained;
}

// ---- the test: images that nobody has seen, a group of them for each device

struct Result {
  double loss = 0;
  NamedValues metrics;
  std::vector<Found> found;
};

Result test(const ShapesOptions& o, const std::vector<Device>& devices, Segmenter trained) {
  const MMDataParallel net(std::move(trained), {.devices = devices});
  DataLoader loader(
      Shapes{static_cast<std::uint64_t>(o.seed), kFirstTest, o.test_images},
      {.batch_size = kTestBatch * static_cast<std::int64_t>(devices.size()), .workers = static_cast<int>(o.workers)},
      Collate{.samples_per_device = kTestBatch});
  const NoGrad no_grad;
  const TrainingScope evaluating(false);
  MeanIoU metric;
  Result result;
  for (const ShapeSample& batch : loader) {
    // One output for each device: its images were padded among themselves, so the sizes differ.
    std::vector<Tensor> predictions;
    for (auto& output : net.forward_ungathered(batch.image, batch.truth, batch.meta, Mode::predict))
      for (Tensor& prediction : output.predictions()) predictions.push_back(prediction.to(Device::cpu()));
    metric.process(batch, predictions);
    std::size_t group = 0, number = 0;
    for (auto& output : net.forward_ungathered(batch.image, batch.truth, batch.meta, Mode::loss)) {
      const double loss = output.loss().losses.at("loss_seg").as_tensor().item<double>();
      for (const Tensor& truth : batch.truth.list(group)) {
        result.loss += loss / static_cast<double>(o.test_images);
        if (result.found.size() < 8) {
          const ImageMeta& meta = batch.meta.list(group)[number];
          const Tensor& images = batch.image.stacked(group);
          result.found.push_back({images.select(0, static_cast<std::int64_t>(number))
                                      .narrow(1, 0, meta.img_shape.height)
                                      .narrow(2, 0, meta.img_shape.width),
                                  truth, predictions[result.found.size()]});
        }
        ++number;
      }
      ++group, number = 0;
    }
  }
  result.metrics = metric.evaluate(o.test_images, nullptr);
  return result;
}

void report(const ShapesOptions& o, int ranks, const std::vector<Device>& devices, const Segmenter& trained) {
  const std::string hash = parameters_sha256(trained);
  const Result result = test(o, devices, trained);
  if (!o.output.empty()) {
    const std::string path = (std::filesystem::path(o.output) / "shapes.png").string();
    contact_sheet(result.found).save(path);
    if (!o.quiet && !o.json)
      say("\npictures of %zu test images: %s; of the losses: losses.png beside them", result.found.size(),
          path.c_str());
  }
  const double mean = result.metrics.at("mIoU").as_number();
  const auto iou = [&](std::size_t label) { return result.metrics.at(cat("IoU_", kShapeNames[label])).as_number(); };
  if (o.json) {
    std::string each;
    for (std::size_t label = 0; label < kShapeClasses; ++label)
      each += format(",\"%s\":%.6g", kShapeNames[label], iou(label));
    std::printf(
        "{\"ranks\":%d,\"devices\":%zu,\"images\":%lld,\"mean_iou\":%.6g,\"loss\":%s%s,\"parameters_sha256\":\"%s\"}\n",
        ranks, devices.size(), static_cast<long long>(o.test_images), mean,
        std::isfinite(result.loss) ? format("%.9g", result.loss).c_str() : "null", each.c_str(), hash.c_str());
  } else {
    if (!o.quiet) {
      say("%lld test images on %zu devices %s: intersection over union", static_cast<long long>(o.test_images),
          devices.size(), to_string(devices).c_str());
      for (std::size_t label = 0; label < kShapeClasses; ++label) say("  %-10s  %.4f", kShapeNames[label], iou(label));
    }
    say("detect_shapes: ranks=%d mean_iou=%.4f loss=%.6g devices=%zu parameters_sha256=%s", ranks, mean, result.loss,
        devices.size(), hash.c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw Error("expected to write the results, got an error");
}

// ---- what would fail at the end is better refused at the start

void check_folder(const char* option, const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK | X_OK) != 0)
    throw UsageError(cat(option, ": expected a folder that can be written to, got '", folder, "'"));
}

void check_checkpoint(const ShapesOptions& o, int ranks) {
  const std::filesystem::path folder(o.checkpoint);
  std::string name;
  std::getline(std::ifstream(folder / "last_checkpoint") >> std::ws, name);
  if (name.empty()) throw UsageError(cat("--resume: expected a checkpoint in '", o.checkpoint, "', found none"));
  const std::string path = (folder / name).string();
  std::map<std::string, std::string> found;
  try {
    found = load_safetensors(path).metadata;
  } catch (const Error& error) {
    throw UsageError(cat("--resume: ", error.what()));
  }
  for (const auto& [entry, wanted] : setting(o, ranks))
    if (found[entry] != wanted)
      throw UsageError(cat("--resume: expected ", entry, " ", found[entry].empty() ? "unknown" : found[entry],
                           " as in '", path, "', got ", wanted));
}

int run(const ShapesOptions& o) {
  const RankInfo launched = discover_ranks();
  const int threads = o.ranks > 0 ? o.ranks : launched.source == "default" ? 2 : 0;
  // Virtual devices cost nothing until they are used.
  if (!std::getenv("LOCKSTEP_HOST_DEVICES")) configure_host({.devices = std::max(8, threads)});
  std::vector<Device> devices;
  try {
    devices = accelerators();
    devices.resize(std::min<std::size_t>(devices.size(), 2), Device::cpu());
    if (!o.devices.empty()) devices = parse_devices(o.devices);
  } catch (const Error& error) {
    throw UsageError(cat("--devices: ", error.what()));
  }
  check_folder("--checkpoint", o.checkpoint);
  check_folder("--output", o.output);
  if (o.resume) check_checkpoint(o, threads > 0 ? threads : launched.size);

  const auto timeout = std::chrono::seconds(o.stall_seconds);
  if (threads > 0) {
    auto trained =
        run_ranks(threads, [&](Communicator& communicator) { return train(o, communicator); }, {.timeout = timeout});
    report(o, threads, devices, trained[0]);
    return 0;
  }
  const auto communicator = make_communicator({.rank = launched, .timeout = timeout});
  const Segmenter trained = train(o, *communicator);
  if (communicator->rank() == 0) report(o, communicator->size(), devices, trained);
  return 0;
}

}  // namespace
}  // namespace example

// Exits with 0, or 1 when something failed, 2 when the command line or the checkpoint is not right.
int main(int argc, char** argv) {
  return example::run_program("detect_shapes", [&] {
    const auto options = example::parse_shapes_options(argc, argv);
    return options ? example::run(*options) : 0;
  });
}
