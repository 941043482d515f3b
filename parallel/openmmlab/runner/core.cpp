#include "lockstep/parallel/openmmlab/runner/core.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string_view>

#include "lockstep/parallel/ddp/broadcast_coalesced.h"
#include "lockstep/parallel/openmmlab/runner/scalars.h"

namespace lockstep {
namespace {

// The model itself. What a wrapper wraps is as little const as the wrapper.
ModuleBase& unwrapped(ModuleBase& model) {
  ModuleBase* module = &model;
  while (const ModuleBase* inner = module->wrapped_module()) module = const_cast<ModuleBase*>(inner);  // NOLINT
  return *module;
}

void check(const RunnerOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    LOCKSTEP_CHECK(value > 0, "[Runner] expected ", name, " above 0, got ", value);
  };
  std::visit(
      [&](const auto& loop) {
        if constexpr (requires { loop.max_epochs; })
          positive("max_epochs", loop.max_epochs);
        else
          positive("max_iters", loop.max_iters);
        positive("val_interval", loop.val_interval);
      },
      options.train_cfg);
  positive("the logger's interval", options.logger.interval);
  for (const std::string& metric : options.checkpoint.save_best.metrics()) {
    LOCKSTEP_CHECK(!options.work_dir.empty(), "[Runner] expected a work_dir for save_best '", metric, "', got none");
    if (!options.checkpoint.rule && metric != "auto") infer_rule(metric);
  }
}

// Each sets the values of its optimizer whatever they are: the one that steps last would undo all others.
void check_schedulers(const std::vector<RunnerScheduler>& schedulers, OptimWrapper* wrapper) {
  for (const RunnerScheduler& each : schedulers) {
    if (!each.scheduler) continue;
    const std::string_view quantity = each.scheduler->quantity();
    for (const RunnerScheduler& other : schedulers) {
      if (&other == &each) continue;
      bool clash = other.scheduler && &other.scheduler->optimizer() == &each.scheduler->optimizer() &&
                   other.scheduler->quantity() == quantity;
      if (other.range && wrapper &&
          (other.range->quantity() == mmengine::Quantity::momentum) == each.scheduler->of_momentum())
        for (const Optimizer* target : detail::RangeScheduler::targets(*wrapper, other.range->optimizer()))
          clash |= target == &each.scheduler->optimizer();
      LOCKSTEP_CHECK(
          !clash, "[Runner] expected one LrScheduler or MomentumScheduler for the ", quantity,
          " of an optimizer, got others beside it, which would undo each other: use those of namespace mmengine, "
          "such as mmengine::LinearLR and mmengine::CosineAnnealingLR, or one SequentialLR");
    }
  }
}

}  // namespace

struct RunnerCore::Parts {
  detail::LogBuffer log;
  std::chrono::steady_clock::time_point begin;
  std::int64_t first_iter = 0;
};

RunnerCore::RunnerCore(ModuleBase& model, OptimWrapper* optim_wrapper, RunnerOptions options)
    : optim_wrapper_(optim_wrapper),
      module_(unwrapped(model)),
      options_(std::move(options)),
      communicator_(options_.communicator),
      parts_(std::make_unique<Parts>()) {
  check(options_);
  check_schedulers(options_.param_schedulers, optim_wrapper_);
  for (const RunnerScheduler& each : options_.param_schedulers) schedulers_.emplace_back(each);
  std::stable_sort(options_.hooks.begin(), options_.hooks.end(),
                   [](const RunnerHook& a, const RunnerHook& b) { return a.priority < b.priority; });
}

RunnerCore::~RunnerCore() = default;

OptimWrapper& RunnerCore::optim_wrapper() {
  LOCKSTEP_CHECK(optim_wrapper_, "[Runner] expected a Runner with an OptimWrapper, got one that only evaluates");
  return *optim_wrapper_;
}

detail::TrainLength RunnerCore::train_length() const {
  const auto* const epochs = std::get_if<EpochBasedTrainLoop>(&options_.train_cfg);
  const std::int64_t per_epoch = iters_per_epoch_;
  if (epochs) return {per_epoch, epochs->max_epochs, epochs->max_epochs * per_epoch};
  const std::int64_t iters = std::get<IterBasedTrainLoop>(options_.train_cfg).max_iters;
  return {per_epoch, iters / per_epoch + (iters % per_epoch != 0), iters};
}

// ---- training

void RunnerCore::begin_train(std::int64_t iters_per_epoch, bool validates) {
  optim_wrapper();  // there is one
  const std::string mine = cat("a loader of ", iters_per_epoch, " batches, from iteration ", iter_, " on");
  if (communicator_ && communicator_->size() > 1) {
    const std::vector<std::string> all = communicator_->all_gather_bytes(mine);
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      LOCKSTEP_CHECK(all[rank] == all[0], "[Runner] expected the same on all ranks, got ", all[0], " on rank 0, ",
                     all[rank], " on rank ", rank);
  }
  const CheckpointHook& files = options_.checkpoint;
  if (!options_.work_dir.empty() && (files.interval > 0 || files.save_last || !files.save_best.metrics().empty()))
    check_whole();
  LOCKSTEP_CHECK(iters_per_epoch > 0, "[Runner] expected a loader with batches, got an empty one");
  LOCKSTEP_CHECK(iters_per_epoch_ == 0 || iters_per_epoch_ == iters_per_epoch, "[Runner] expected a loader of ",
                 iters_per_epoch_, " batches, as before, got one of ", iters_per_epoch);
  iters_per_epoch_ = iters_per_epoch;
  validates_ = validates;
  stopped_ = false;
  const detail::TrainLength length = train_length();
  max_iters_ = length.max_iters;
  for (detail::LiveScheduler& each : schedulers_) each.prepare(optim_wrapper(), length);
  for (detail::LiveScheduler& each : schedulers_) each.begin();
  // A resumed wrapper counts already, and its gradients are there: nothing is lost.
  if (!train_done() && (optim_wrapper().inner_count() != iter_ || optim_wrapper().max_counts() != max_iters_))
    optim_wrapper().initialize_count_status(module_, iter_, max_iters_);
  parts_->begin = std::chrono::steady_clock::now();
  parts_->first_iter = iter_;
  call<&RunnerHook::before_train>();
}

void RunnerCore::begin_epoch() {
  if (iter_in_epoch_ == 0) call<&RunnerHook::before_train_epoch>();
}
void RunnerCore::before_train_iter() { call<&RunnerHook::before_train_iter>(); }

bool RunnerCore::after_train_iter(const LogVars& log, double data_seconds, double seconds) {
  ++iter_, ++iter_in_epoch_;
  parts_->log.add("time", seconds);
  parts_->log.add("data_time", data_seconds);
  parts_->log.add(log);
  call<&RunnerHook::after_train_iter>(log);
  if (iter_ % options_.logger.interval == 0 || train_done()) {
    detail::Numbers numbers;
    for (const auto& [name, values] : optim_wrapper_->get_lr()) numbers.emplace_back(name, values.at(0));
    for (const auto& [name, values] : optim_wrapper_->get_momentum()) numbers.emplace_back(name, values.at(0));
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - parts_->begin;
    const auto left = static_cast<double>(max_iters_ - iter_);
    numbers.emplace_back("eta", passed.count() / static_cast<double>(iter_ - parts_->first_iter) * left);
    for (auto& mean : parts_->log.take_means(communicator_)) numbers.push_back(std::move(mean));
    show({"train", by_epoch(), epoch_ + 1, iter_, by_epoch() ? iter_in_epoch_ : iter_,
          by_epoch() ? iters_per_epoch_ : max_iters_},
         numbers);
  }
  const bool epoch_ends = iter_in_epoch_ == iters_per_epoch_;
  for (detail::LiveScheduler& each : schedulers_)
    if (!each.by_epoch() || epoch_ends) each.step();
  if (epoch_ends) {
    ++epoch_, iter_in_epoch_ = 0;
    call<&RunnerHook::after_train_epoch>();
  }
  return validates_ && std::visit(
                           [&](const auto& loop) {
                             if ((by_epoch() ? epoch_ : iter_) < loop.val_begin) return false;
                             return due(loop.val_interval, by_epoch()) || iter_ == max_iters_;
                           },
                           options_.train_cfg);
}

// Whether `interval` epochs, or iterations, have passed since the last time.
bool RunnerCore::due(std::int64_t interval, bool counts_epochs) const {
  if (interval < 1 || (counts_epochs && iter_in_epoch_ != 0)) return false;
  return (counts_epochs ? epoch_ : iter_) % interval == 0;
}

void RunnerCore::end_train() { call<&RunnerHook::after_train>(); }

// ---- evaluation

RunnerCore::AroundEvaluation::AroundEvaluation(RunnerCore& runner) {
  try {
    for (const RunnerHook& hook : runner.options_.hooks) {
      if (!hook.around_evaluation) continue;
      undo_.reserve(undo_.size() + 1);
      undo_.push_back(hook.around_evaluation(runner));
    }
  } catch (...) {
    undo_all();
    throw;
  }
}
RunnerCore::AroundEvaluation::~AroundEvaluation() { undo_all(); }

// Each once, also one that throws.
void RunnerCore::AroundEvaluation::finish() {
  while (!undo_.empty()) {
    const std::function<void()> undo = std::move(undo_.back());
    undo_.pop_back();
    if (undo) undo();
  }
}

// Where something has failed already.
void RunnerCore::AroundEvaluation::undo_all() noexcept {
  while (!undo_.empty()) try {
      finish();
    } catch (...) {  // the first error is on its way
    }
}

void RunnerCore::begin_evaluation(const Evaluation& evaluation, bool all_ranks) {
  if (all_ranks && communicator_ && communicator_->size() > 1) {
    // Running statistics are a rank's own: the whole set is to be measured with one model.
    std::vector<Tensor> buffers;
    for (const Parameter& buffer : module_.buffers())
      if (buffer.device() == communicator_->device()) buffers.push_back(buffer.tensor());
    detail::broadcast_coalesced(*communicator_, buffers, 0);
  }
  if (std::string_view(evaluation.mode) == "val")
    call<&RunnerHook::before_val_epoch>();
  else
    call<&RunnerHook::before_test_epoch>();
}

void RunnerCore::after_evaluation_iter(const Evaluation& evaluation) {
  if (std::string_view(evaluation.mode) == "val")
    call<&RunnerHook::after_val_iter>();
  else
    call<&RunnerHook::after_test_iter>();
}

NamedValues RunnerCore::end_evaluation(const Evaluation& evaluation, const NamedValues& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    const std::optional<double> number = detail::number_in(value);
    LOCKSTEP_CHECK(number, "[Runner] expected metrics that are numbers, got '", name, "' of type ", value.type());
    text += cat(name, '\t', *number, '\n');
  }
  if (communicator_ && communicator_->size() > 1) text = communicator_->broadcast_bytes(text, 0);
  detail::Numbers numbers;
  NamedValues of_all;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin), tab = text.rfind('\t', end);
    const double value = std::strtod(text.c_str() + tab + 1, nullptr);
    numbers.emplace_back(text.substr(begin, tab - begin), value);
    of_all[numbers.back().first] = value;
    begin = end + 1;
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(1, evaluation.batches));
  numbers.emplace_back("time", (evaluation.data_seconds + evaluation.seconds) / count);
  numbers.emplace_back("data_time", evaluation.data_seconds / count);
  show({evaluation.mode, by_epoch(), std::max<std::int64_t>(1, epoch_), iter_, evaluation.batches, evaluation.batches},
       numbers);
  if (std::string_view(evaluation.mode) == "val")
    call<&RunnerHook::after_val_epoch>(of_all);
  else
    call<&RunnerHook::after_test_epoch>(of_all);
  return of_all;
}

void RunnerCore::show(const detail::Place& place, const detail::Numbers& numbers) {
  if (rank() != 0) return;
  if (options_.logger.sink) options_.logger.sink(detail::line_of(place, numbers));
  if (options_.work_dir.empty()) return;
  if (scalars_end_) detail::drop_after(options_.work_dir, *std::exchange(scalars_end_, std::nullopt));
  detail::append_json(options_.work_dir, place, numbers);
}

}  // namespace lockstep
