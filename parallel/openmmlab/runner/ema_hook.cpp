#include "lockstep/parallel/openmmlab/runner/ema_hook.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "lockstep/parallel/openmmlab/runner/core.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/nn/read_gate.h"

namespace lockstep {
namespace {

constexpr std::string_view kModel = "model.", kSource = "ema.";
constexpr const char* kSteps = "ema.steps";

}  // namespace

struct EMAHook::State {
  struct Average {
    std::string name;
    Parameter parameter;
    bool averages;  // else a copy
    Tensor value;
    Tensor source = {};  // of the parameter, while it has the average
  };
  using Assignments = std::vector<std::pair<Parameter, Tensor>>;
  AverageOptions options;
  std::int64_t begin_iter, begin_epoch;
  std::int64_t steps = 0;
  std::vector<Average> all;
  // Of a checkpoint that may yet be refused.
  std::int64_t read_steps = 0;
  std::vector<Average> read;

  Average* find(std::string_view name) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Average& each) { return each.name == name; });
    return found == all.end() ? nullptr : &*found;
  }
  // As they begin: copies of the parameters.
  std::vector<Average> averages_of(const ModuleBase& module) const {
    const NoGrad no_grad;
    std::vector<Average> fresh;
    const auto add = [&](const std::vector<NamedParameter>& named, bool averages) {
      for (const auto& [name, parameter] : named)
        fresh.push_back({name, parameter, averages, parameter.tensor().detach().clone()});
    };
    add(module.named_parameters(), true);
    add(module.named_buffers(), options.update_buffers);
    return fresh;
  }
  // Once there is a model.
  void begin(const ModuleBase& module) {
    if (all.empty()) all = averages_of(module);
  }
  void update(RunnerCore& runner) {
    begin(runner.module());
    const bool begun = runner.iter() >= begin_iter && runner.epoch() + 1 >= begin_epoch;
    for (Average& each : all) {
      const Tensor& parameter = each.parameter.tensor();
      LOCKSTEP_EDGE(each.value.storage()->record_use(current_stream(each.value.device())));
      each.value = each.averages ? options.next(each.value, parameter, steps) : parameter.detach().clone();
    }
    if (begun) ++steps;  // until then each update is the first, which copies
  }
  // Whoever else calls the model meanwhile meets the parameters or the averages, not some of each.
  void exchange() {
    const NoGrad no_grad;
    Assignments sources, averages;
    for (const Average& each : all) {
      sources.emplace_back(each.parameter, each.parameter.tensor().detach().clone());
      averages.emplace_back(each.parameter, each.value);
    }
    try {
      detail::assign_all("EMAHook", averages);
    } catch (...) {
      detail::assign_all("EMAHook", sources);
      throw;
    }
    for (std::size_t i = 0; i < all.size(); ++i) all[i].source = std::move(sources[i].second);
  }
  void put_back() {
    Assignments sources;
    for (const Average& each : all)
      if (each.source.defined()) sources.emplace_back(each.parameter, each.source);
    detail::assign_all("EMAHook", sources);
    for (Average& each : all) each.source = Tensor();
  }
  void save(Safetensors& checkpoint) {
    if (all.empty()) return;
    std::vector<NamedTensor> sources;
    for (NamedTensor& named : checkpoint.tensors) {
      if (!named.name.starts_with(kModel)) continue;
      const std::string name = named.name.substr(kModel.size());
      const Average* const average = find(name);
      if (!average) continue;
      sources.push_back({cat(kSource, name), average->source.defined() ? average->source : named.tensor});
      named.tensor = average->value;
    }
    checkpoint.tensors.insert(checkpoint.tensors.end(), sources.begin(), sources.end());
    checkpoint.metadata[kSteps] = std::to_string(steps);
  }
  void load(RunnerCore& runner, Safetensors& checkpoint) {
    const auto count = checkpoint.metadata.find(kSteps);
    const bool resumes = runner.resuming() && count != checkpoint.metadata.end();
    if (runner.resuming() && !resumes)
      log(LogLevel::warning, "[EMAHook] the checkpoint has no averages: they begin with its parameters");
    std::map<std::string, Tensor*> model;
    const auto prefix = checkpoint.metadata.find("model_prefix");
    const std::string_view begins = prefix == checkpoint.metadata.end() ? std::string_view() : prefix->second;
    for (NamedTensor& named : checkpoint.tensors)
      if (named.name.starts_with(begins)) model[named.name.substr(begins.size())] = &named.tensor;
    read = averages_of(runner.module());
    for (Average& each : read) {
      const auto found = model.find(each.name);
      if (found == model.end() || found->second->shape() != each.value.shape()) continue;  // the model says so
      each.value = found->second->to(each.value.dtype()).to(each.value.device()).clone();
    }
    read_steps = 0;
    if (resumes) {
      const std::string& text = count->second;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read_steps);
      LOCKSTEP_CHECK(error == std::errc() && *end == '\0' && read_steps >= 0,
                     "[EMAHook] expected a number of updates as ", kSteps, ", got '", text, "'");
      for (const NamedTensor& named : checkpoint.tensors) {
        if (!named.name.starts_with(kSource)) continue;
        if (const auto found = model.find(named.name.substr(kSource.size())); found != model.end())
          *found->second = named.tensor;
      }
    }
    std::erase_if(checkpoint.tensors, [](const NamedTensor& named) { return named.name.starts_with(kSource); });
  }
  void take_over() {
    all = std::exchange(read, {});
    steps = read_steps;
  }
};

EMAHook::EMAHook(const EMAHookOptions& o)
    : state_(std::make_shared<State>(State{.options = {o.momentum, o.interval, o.update_buffers, o.kind, o.gamma},
                                           .begin_iter = o.begin_iter,
                                           .begin_epoch = o.begin_epoch})) {
  state_->options.check();
  LOCKSTEP_CHECK(o.begin_iter >= 0 && o.begin_epoch >= 0,
                 "[EMAHook] expected begin_iter and begin_epoch of at least 0, got ", o.begin_iter, " and ",
                 o.begin_epoch);
}

EMAHook::operator RunnerHook() const {
  RunnerHook hook;
  const auto state = state_;
  hook.before_train = [state](RunnerCore& runner) { state->begin(runner.module()); };
  hook.after_train_iter = [state](RunnerCore& runner, const LogVars&) { state->update(runner); };
  hook.around_evaluation = [state](RunnerCore&) -> std::function<void()> {
    state->exchange();
    return [state] { state->put_back(); };
  };
  hook.before_save_checkpoint = [state](RunnerCore&, Safetensors& checkpoint) { state->save(checkpoint); };
  hook.after_load_checkpoint = [state](RunnerCore& runner, Safetensors& checkpoint) {
    state->load(runner, checkpoint);
  };
  hook.after_take_over = [state](RunnerCore&) { state->take_over(); };
  return hook;
}

std::vector<NamedTensor> EMAHook::averages() const {
  std::vector<NamedTensor> averages;
  for (const State::Average& each : state_->all) averages.push_back({each.name, each.value});
  return averages;
}
std::int64_t EMAHook::steps() const { return state_->steps; }

}  // namespace lockstep
