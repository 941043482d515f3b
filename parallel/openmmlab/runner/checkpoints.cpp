// The checkpoints of a Runner.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "lockstep/parallel/openmmlab/runner/core.h"
#include "lockstep/parallel/openmmlab/runner/internal/log_buffer.h"
#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/io/safetensors.h"

namespace lockstep {
namespace {

constexpr const char* kFormat = "lockstep.runner";  // a key of the metadata
constexpr const char* kLast = "last_checkpoint";    // file with the name of the newest

using Tensors = std::vector<NamedTensor>;

void append(Tensors& all, const std::string& prefix, const Tensors& part) {
  for (const NamedTensor& named : part) all.push_back({prefix + named.name, named.tensor});
}
Tensors part_of(const Safetensors& file, const std::string& prefix) {
  Tensors part;
  for (const NamedTensor& named : file.tensors)
    if (named.name.starts_with(prefix)) part.push_back({named.name.substr(prefix.size()), named.tensor});
  return part;
}

// What a file says of a training, with the errors of one who reads what others wrote.
class Metadata {
 public:
  Metadata(const std::string& path, const std::map<std::string, std::string>& entries)
      : path_(path), entries_(entries) {
    LOCKSTEP_CHECK(entries_.contains(kFormat), "[Runner] expected a checkpoint of a Runner, got '", path_, "'");
  }
  const std::string& text(const std::string& name) const {
    const auto found = entries_.find(name);
    LOCKSTEP_CHECK(found != entries_.end(), "[Runner] expected '", path_, "' to say its ", name, ", got nothing");
    return found->second;
  }
  std::uint64_t number(const std::string& name) const { return numbers(name, 1).front(); }
  std::vector<std::uint64_t> numbers(const std::string& name, std::size_t count) const {
    std::vector<std::uint64_t> all;
    const char* at = text(name).c_str();
    for (char* end = nullptr; *at != '\0'; at = *end == ' ' ? end + 1 : end) {
      all.push_back(std::strtoull(at, &end, 10));
      if (end == at) break;
    }
    LOCKSTEP_CHECK(*at == '\0' && all.size() == count, "[Runner] expected '", path_, "' to have ", count,
                   " numbers as its ", name, ", got '", text(name), "'");
    return all;
  }

 private:
  const std::string& path_;
  const std::map<std::string, std::string>& entries_;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Rank 0 does it; all ranks throw what it throws.
template <class F>
void on_rank_0(Communicator* communicator, F&& work) {
  if (!communicator || communicator->size() == 1) return work();
  std::string failure;
  std::exception_ptr error;
  if (communicator->rank() == 0) try {
      work();
    } catch (const std::exception& caught) {
      error = std::current_exception();
      failure = caught.what();
    }
  failure = communicator->broadcast_bytes(failure, 0);
  if (error) std::rethrow_exception(error);
  if (!failure.empty()) detail::fail<Error>("[Runner] rank 0 failed: ", failure);
}

// Gradients that wait for the end of their window: each rank has its own. Rank 0 gets all of them.
void append_gradients(Tensors& all, const ModuleBase& module, Communicator* communicator) {
  const std::vector<NamedParameter> parameters = module.named_parameters();
  std::string mine;
  for (const NamedParameter& named : parameters) mine += named.parameter.grad().defined() ? '1' : '0';
  if (!communicator || communicator->size() == 1) {
    for (const NamedParameter& named : parameters)
      if (named.parameter.grad().defined()) all.push_back({"grad.0." + named.name, named.parameter.grad()});
    return;
  }
  const std::vector<std::string> of_ranks = communicator->all_gather_bytes(mine);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto has = [&](const std::string& rank) { return rank.size() > i && rank[i] == '1'; };
    if (std::none_of(of_ranks.begin(), of_ranks.end(), has)) continue;
    const Parameter& parameter = parameters[i].parameter;
    const Device device = communicator->device();
    const TensorOptions options{.dtype = parameter.dtype(), .device = device};
    const Tensor own = has(mine) ? parameter.grad().to(device).contiguous() : zeros(parameter.shape(), options);
    const Tensor together = empty({communicator->size(), own.count()}, options);
    communicator->gather(own, together, 0);
    for (std::size_t rank = 0; rank < of_ranks.size() && communicator->rank() == 0; ++rank)
      if (has(of_ranks[rank]))
        all.push_back({cat("grad.", rank, '.', parameters[i].name),
                       together.select(0, static_cast<std::int64_t>(rank)).reshape(parameter.shape())});
  }
}

}  // namespace

// ---- writing

std::string RunnerCore::path_of(const std::string& name) const {
  return (std::filesystem::path(options_.work_dir) / name).string();
}
std::string RunnerCore::name_of_now() const {
  const bool epochs = checkpoints_count_epochs() && iter_in_epoch_ == 0;
  return cat(epochs ? "epoch_" : "iter_", epochs ? epoch_ : iter_, ".safetensors");
}
void RunnerCore::remove_file(const std::string& name) const {
  std::error_code ignored;  // gone already: as well
  std::filesystem::remove(path_of(name), ignored);
}

std::map<std::string, std::string> RunnerCore::progress(const std::vector<std::string>& random_of_ranks) const {
  std::map<std::string, std::string> metadata = options_.metadata;
  metadata[kFormat] = std::to_string(1);  // version
  metadata["epoch"] = std::to_string(epoch_);
  metadata["iter"] = std::to_string(iter_);
  metadata["iter_in_epoch"] = std::to_string(iter_in_epoch_);
  metadata["iters_per_epoch"] = std::to_string(iters_per_epoch_);
  metadata["schedulers"] = std::to_string(options_.param_schedulers.size());
  metadata["ranks"] = std::to_string(random_of_ranks.size());
  for (std::size_t rank = 0; rank < random_of_ranks.size(); ++rank)
    metadata[cat("random.", rank)] = random_of_ranks[rank];
  if (best_score_) metadata["best_score"] = number_to_string(*best_score_);
  metadata["best_checkpoint"] = best_checkpoint_;
  std::string kept;
  for (const std::string& name : kept_) kept += cat(kept.empty() ? "" : "/", name);
  metadata["checkpoints"] = kept;
  return metadata;
}

void RunnerCore::save_checkpoint(const std::string& path) {
  const ThreadContext& context = thread_context();
  const std::string mine = cat(context.random_seed, ' ', context.random_stream, ' ', context.random_counter);
  const std::vector<std::string> random =
      communicator_ && communicator_->size() > 1 ? communicator_->all_gather_bytes(mine) : std::vector{mine};
  const NoGrad no_grad;
  Tensors all;
  append_gradients(all, module_, communicator_);
  on_rank_0(communicator_, [&] {
    append(all, "model.", module_.state_dict());
    append(all, "optimizer.", optim_wrapper_.state_dict());
    for (std::size_t i = 0; i < options_.param_schedulers.size(); ++i)
      append(all, cat("scheduler.", i, '.'), options_.param_schedulers[i].scheduler->state_dict());
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;  // where there is none the file says so
    if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
    save_safetensors(path, all, progress(random));
  });
}

// Says in work_dir which one is the newest.
void RunnerCore::write(const std::string& name) {
  save_checkpoint(path_of(name));
  on_rank_0(communicator_, [&] {
    const std::string path = path_of(kLast), fresh = path + ".new";
    std::ofstream(fresh) << name << '\n';
    if (std::rename(fresh.c_str(), path.c_str()) != 0)
      detail::fail<Error>("[Runner] expected to write '", path, "', got an error of the system");
  });
}

void RunnerCore::save_where_due() {
  const CheckpointHook& hook = options_.checkpoint;
  const bool last = hook.save_last && train_done();
  if (options_.work_dir.empty() || !(last || due(hook.interval, checkpoints_count_epochs()))) return;
  const std::string name = name_of_now();
  std::erase(kept_, name);
  kept_.push_back(name);
  std::vector<std::string> old;
  if (hook.max_keep_ckpts > 0 && std::ssize(kept_) > hook.max_keep_ckpts) {
    old.assign(kept_.begin(), kept_.end() - hook.max_keep_ckpts);
    kept_.erase(kept_.begin(), kept_.end() - hook.max_keep_ckpts);
  }
  write(name);
  for (const std::string& each : old)
    if (rank() == 0) remove_file(each);  // only now: there was always one
}

void RunnerCore::save_best(const NamedValues& metrics) {
  const CheckpointHook& hook = options_.checkpoint;
  if (hook.save_best.empty()) return;
  std::string names;
  for (const auto& item : metrics) names += cat(names.empty() ? "" : ", ", item.first);
  LOCKSTEP_CHECK(metrics.contains(hook.save_best), "[Runner] expected save_best to be a metric out of (", names,
                 "), got '", hook.save_best, "'");
  const double score = metrics.at(hook.save_best).as_number();
  const double best = best_score_.value_or(hook.rule == Rule::greater ? -HUGE_VAL : HUGE_VAL);
  if (!(hook.rule == Rule::greater ? score > best : score < best)) return;  // nor where it is no number
  const std::string before = best_checkpoint_;
  std::string key = hook.save_best;
  std::replace(key.begin(), key.end(), '/', '_');
  best_score_ = score;
  best_checkpoint_ = cat("best_", key, '_', name_of_now());
  save_checkpoint(path_of(best_checkpoint_));
  if (rank() == 0 && !before.empty() && before != best_checkpoint_) remove_file(before);
}

// ---- reading

void RunnerCore::load_checkpoint(const std::string& path) {
  const Safetensors file = load_safetensors(path);
  const Metadata metadata(path, file.metadata);
  module_.load_state_dict(part_of(file, "model."));
}

bool RunnerCore::resume() {
  std::string name;
  on_rank_0(communicator_, [&] { std::getline(std::ifstream(path_of(kLast)) >> std::ws, name); });
  if (communicator_ && communicator_->size() > 1) name = communicator_->broadcast_bytes(name, 0);
  if (name.empty()) return false;
  resume(path_of(name));
  return true;
}

void RunnerCore::resume(const std::string& path) {
  const Safetensors file = load_safetensors(path);
  const Metadata metadata(path, file.metadata);
  const auto same = [&](const char* what, std::uint64_t here) {
    LOCKSTEP_CHECK(metadata.number(what) == here, "[Runner] expected ", here, ' ', what, ", got '", path, "' with ",
                   metadata.number(what));
  };
  same("ranks", communicator_ ? static_cast<std::uint64_t>(communicator_->size()) : 1);
  same("schedulers", options_.param_schedulers.size());
  const auto count = [&](const char* name) { return static_cast<std::int64_t>(metadata.number(name)); };
  const std::int64_t epoch = count("epoch"), iter = count("iter"), in_epoch = count("iter_in_epoch"),
                     per_epoch = count("iters_per_epoch");
  const std::vector<std::uint64_t> random = metadata.numbers(cat("random.", rank()), 3);
  const std::string best_checkpoint = metadata.text("best_checkpoint");
  const std::vector<std::string> kept = split(metadata.text("checkpoints"), '/');

  std::map<std::string, Tensor> gradients;
  for (const NamedTensor& named : part_of(file, cat("grad.", rank(), '.'))) gradients[named.name] = named.tensor;
  for (const NamedParameter& named : module_.named_parameters()) {
    const auto found = gradients.find(named.name);
    LOCKSTEP_CHECK(found == gradients.end() || found->second.shape() == named.parameter.shape(),
                   "[Runner] expected a gradient of ", named.name, " like the parameter's ", named.parameter.shape(),
                   ", got ", found->second);
  }

  // Each part checks itself before it changes anything. What was taken over when a later one does not fit goes back.
  std::vector<std::pair<std::function<void(const Tensors&)>, Tensors>> done;
  const auto take = [&](const char* what, const Tensors& before, const Tensors& state, auto load) {
    try {
      load(state);
      done.emplace_back(load, before);
    } catch (const InvalidArgument& error) {
      for (auto undo = done.rbegin(); undo != done.rend(); ++undo) undo->first(undo->second);
      detail::fail<InvalidArgument>("[Runner] expected the ", what, " of this training, got that of '", path,
                                    "': ", error.what());
    }
  };
  const NoGrad no_grad;
  Tensors model = module_.state_dict();
  for (NamedTensor& named : model) named.tensor = named.tensor.clone();
  take("model", model, part_of(file, "model."), [&](const Tensors& state) { module_.load_state_dict(state); });
  for (std::size_t i = 0; i < options_.param_schedulers.size(); ++i) {
    const auto scheduler = options_.param_schedulers[i].scheduler;
    take("scheduler", scheduler->state_dict(), part_of(file, cat("scheduler.", i, '.')),
         [scheduler](const Tensors& state) { scheduler->load_state_dict(state); });
  }
  // The optimizer comes last: its rates are those of the file, not what schedulers compute.
  take("optimizer", optim_wrapper_.state_dict(), part_of(file, "optimizer."),
       [&](const Tensors& state) { optim_wrapper_.load_state_dict(state); });

  for (const NamedParameter& named : module_.named_parameters()) {
    const auto found = gradients.find(named.name);
    named.parameter.set_grad(found == gradients.end() ? Tensor() : found->second.to(named.parameter.device()).clone());
  }
  epoch_ = epoch, iter_ = iter, iter_in_epoch_ = in_epoch, iters_per_epoch_ = per_epoch;
  best_score_.reset();
  if (const auto found = file.metadata.find("best_score"); found != file.metadata.end())
    best_score_ = std::strtod(found->second.c_str(), nullptr);
  best_checkpoint_ = best_checkpoint;
  kept_ = kept;
  thread_context().random_seed = random[0];
  thread_context().random_stream = random[1];
  thread_context().random_counter = random[2];
}

}  // namespace lockstep
