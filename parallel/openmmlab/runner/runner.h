// Runner: trains, validates and tests a model that makes its own steps (base_model.h, or a wrapper of one). After
// mmengine's class, as far as it takes to run the wrappers.
//
//   DataLoader train(pictures, DistributedSampler(count, rank, ranks), {.batch_size = 8});
//   DataLoader val(others, DistributedSampler(other_count, rank, ranks, {.shuffle = false}), {.batch_size = 8});
//   MMDistributedDataParallel model(Segmenter(), communicator);
//   OptimWrapper optim(AdamW(model.parameters(), {.lr = 1e-3}));
//   MeanIoU iou;                                                        // metric.h
//   Runner runner(model, optim, {.train_cfg = EpochBasedTrainLoop{.max_epochs = 12}, .work_dir = "run"});
//   runner.train(train, val, iou);
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "lockstep/parallel/openmmlab/runner/bucket_hook.h"
#include "lockstep/parallel/openmmlab/runner/core.h"
#include "lockstep/parallel/openmmlab/runner/metric.h"
#include "lockstep/tensor/context.h"

namespace lockstep {

namespace detail {
class Laps {
 public:
  // Seconds since the start or the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

template <class Model>
Communicator* communicator_of(const Model& model) {
  if constexpr (requires { model.communicator(); })
    return &model.communicator();
  else
    return nullptr;
}
}  // namespace detail

// Model and optimizer wrapper outlive it. A loader has size(), set_epoch(), begin() and end(), as DataLoader.
//
// An evaluator has process(batch, predictions), called for every batch with what val_step (test_step) gave, and one of
//   evaluate(samples, communicator)  every rank evaluates its share of the data set of so many samples (BaseMetric);
//   evaluate()                       rank 0 evaluates its loader, which has all of the data, and the others wait.
// Either gives NamedValues that are numbers. Rank 0's become those of all ranks.
template <class Model>
class Runner : public RunnerCore {
 public:
  Runner(Model& model, OptimWrapper& optim_wrapper, RunnerOptions options = {})
      : RunnerCore(model, &optim_wrapper, completed(model, std::move(options))), model_(model) {}
  // One that evaluates: load_checkpoint, val and test. train, resume and save_checkpoint throw InvalidArgument.
  explicit Runner(Model& model, RunnerOptions options = {})
      : RunnerCore(model, nullptr, completed(model, std::move(options))), model_(model) {}

  // Trains to the end of options().train_cfg, from where it is: the beginning, or what was resumed. Modules train or
  // evaluate as they are set to (new ones train). Throws InvalidArgument, on every rank, where the ranks' loaders have
  // different sizes or a resumed one's had another.
  template <class Loader>
  void train(Loader& loader) {
    train_with(loader, false, [] { return NamedValues(); });
  }
  template <class Loader, class ValLoader, class Evaluator>
  void train(Loader& loader, ValLoader& val_loader, Evaluator& evaluator) {
    train_with(loader, true, [&] { return val(val_loader, evaluator); });
  }

  // The metrics of a data set, in evaluation mode and without gradients, which are back after it as they were. Where
  // all ranks evaluate they do it with the buffers of rank 0.
  template <class Loader, class Evaluator>
  NamedValues val(Loader& loader, Evaluator& evaluator) {
    return evaluate_with(loader, evaluator, "val", [&](const auto& batch) { return model_.val_step(batch); });
  }
  template <class Loader, class Evaluator>
  NamedValues test(Loader& loader, Evaluator& evaluator) {
    return evaluate_with(loader, evaluator, "test", [&](const auto& batch) { return model_.test_step(batch); });
  }

 private:
  static RunnerOptions completed(Model& model, RunnerOptions options) {
    if (!options.communicator) options.communicator = detail::communicator_of(model);
    detail::add_bucket_hook(model, options);
    return options;
  }

  template <class Loader, class Validate>
  void train_with(Loader& loader, bool validates, Validate&& validate) {
    begin_train(static_cast<std::int64_t>(loader.size()), validates);
    while (!train_done()) {
      loader.set_epoch(static_cast<std::uint64_t>(epoch()));
      detail::Laps laps;
      auto batch = loader.begin();
      for (std::int64_t trained = iter_in_epoch(); trained > 0 && batch != loader.end(); --trained) ++batch;
      LOCKSTEP_CHECK(batch != loader.end(), "[Runner] expected a loader of ", loader.size(), " batches, got fewer");
      begin_epoch();
      for (const std::int64_t number = epoch(); number == epoch() && batch != loader.end() && !train_done(); ++batch) {
        const double data_seconds = laps.lap();
        before_train_iter();
        const LogVars log = model_.train_step(*batch, optim_wrapper());
        if (after_train_iter(log, data_seconds, data_seconds + laps.lap())) save_best(validate());
        save_where_due();
        laps.lap();
      }
    }
    end_train();
  }

  template <class Loader, class Evaluator, class Step>
  NamedValues evaluate_with(Loader& loader, Evaluator& evaluator, const char* mode, Step&& step) {
    constexpr bool kOnAllRanks = detail::EvaluatesShares<Evaluator>;
    Evaluation evaluation{mode, static_cast<std::int64_t>(loader.size())};
    const NoGrad no_grad;
    const TrainingScope evaluating(false);
    AroundEvaluation around(*this);
    begin_evaluation(evaluation, kOnAllRanks);
    NamedValues metrics;
    if (kOnAllRanks || rank() == 0) {
      loader.set_epoch(0);
      detail::Laps laps;
      for (auto batch = loader.begin(); batch != loader.end(); ++batch) {
        evaluation.data_seconds += laps.lap();
        evaluator.process(std::as_const(*batch), step(std::as_const(*batch)));
        evaluation.seconds += laps.lap();
        after_evaluation_iter(evaluation);
      }
      if constexpr (kOnAllRanks)
        metrics = evaluator.evaluate(static_cast<std::int64_t>(loader.dataset().size()), communicator());
      else
        metrics = evaluator.evaluate();
    }
    around.finish();
    return end_evaluation(evaluation, metrics);
  }

  Model& model_;
};

}  // namespace lockstep
