// A Runner writes checkpoints.
#include <algorithm>
#include <filesystem>

#include "lockstep/parallel/openmmlab/runner/checkpoint_file.h"
#include "lockstep/parallel/openmmlab/runner/core.h"
#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/shard.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {
namespace {

using Tensors = std::vector<NamedTensor>;

void append(Tensors& all, const std::string& prefix, const Tensors& part) {
  for (const NamedTensor& named : part) all.push_back({prefix + named.name, named.tensor});
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += cat(text.empty() ? "" : "/", name);
  return text;
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
// What cannot be deleted now is tried again with the next checkpoint.
void RunnerCore::remove_superseded() {
  std::erase_if(files_.superseded, [&](const std::string& name) {
    std::error_code error;
    if (rank() == 0) std::filesystem::remove(path_of(name), error);  // gone already: as well
    return !error;
  });
}

std::map<std::string, std::string> RunnerCore::progress(const std::vector<std::string>& random_of_ranks) const {
  std::map<std::string, std::string> metadata = options_.metadata;
  metadata[detail::kRunnerFormat] = std::to_string(1);  // version
  metadata["model_prefix"] = "model.";                  // for load_model
  metadata["epoch"] = std::to_string(epoch_);
  metadata["iter"] = std::to_string(iter_);
  metadata["iter_in_epoch"] = std::to_string(iter_in_epoch_);
  metadata["iters_per_epoch"] = std::to_string(iters_per_epoch_);
  metadata["schedulers"] = std::to_string(schedulers_.size());
  metadata["ranks"] = std::to_string(random_of_ranks.size());
  for (std::size_t rank = 0; rank < random_of_ranks.size(); ++rank)
    metadata[cat("random.", rank)] = random_of_ranks[rank];
  for (const Best& best : files_.best)
    metadata[cat("best.", best.metric)] = cat(number_to_string(best.score), ' ', best.file);
  metadata["checkpoints"] = joined(files_.kept);
  metadata["superseded"] = joined(files_.superseded);
  return metadata;
}

// What rank 0 has must be all there is.
void RunnerCore::check_whole() {
  constexpr const char* kInstead = "; keep such a training by a CheckpointWriter, and give the Runner no work_dir";
  for (const NamedParameter& named : module_.named_parameters())
    if (shard_of(named.parameter))
      detail::fail<NotSupported>(
          "[Runner] expected checkpoints of parameters that are whole on rank 0, got a part of '", named.name, "'",
          kInstead);
  optim_wrapper().for_each_optimizer([&](std::string_view, Optimizer& optimizer) {
    if (dynamic_cast<detail::DividedState*>(&optimizer))
      detail::fail<NotSupported>("[Runner] expected checkpoints of an optimizer whose state is whole on rank 0, got a ",
                                 "ZeroRedundancyOptimizer", kInstead);
  });
}

void RunnerCore::save_checkpoint(const std::string& path) {
  check_whole();
  const ThreadContext& context = thread_context();
  const std::string mine = cat(context.random_seed, ' ', context.random_stream, ' ', context.random_counter);
  const std::vector<std::string> random =
      communicator_ && communicator_->size() > 1 ? communicator_->all_gather_bytes(mine) : std::vector{mine};
  const NoGrad no_grad;
  Tensors all;
  append_gradients(all, module_, communicator_);
  detail::on_rank_0(communicator_, [&] {
    append(all, "model.", module_.state_dict());
    append(all, "optimizer.", optim_wrapper().state_dict());
    for (std::size_t i = 0; i < schedulers_.size(); ++i)
      append(all, cat("scheduler.", i, '.'), schedulers_[i].state_dict());
    Safetensors checkpoint{std::move(all), progress(random)};
    call<&RunnerHook::before_save_checkpoint>(checkpoint);
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;  // the file says what is wrong with it
    if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
    save_safetensors(path, checkpoint.tensors, checkpoint.metadata);
  });
}

// Each file says what there is with it. Where it cannot be written all stays as it was: what it was to supersede too.
void RunnerCore::write(const std::string& name, Files with_it, bool is_newest) {
  std::erase(with_it.superseded, name);
  std::swap(files_, with_it);
  try {
    save_checkpoint(path_of(name));
    if (is_newest) mark_newest(name);
  } catch (...) {
    files_ = std::move(with_it);
    throw;
  }
  remove_superseded();  // only now: there was always one
}

// Says in work_dir which one it is.
void RunnerCore::mark_newest(const std::string& name) {
  detail::on_rank_0(communicator_, [&] { detail::replace_file(path_of(detail::kLastCheckpoint), name + '\n'); });
}

void RunnerCore::save_where_due() {
  const CheckpointHook& hook = options_.checkpoint;
  const bool last = hook.save_last && train_done();
  if (options_.work_dir.empty() || !(last || due(hook.interval, checkpoints_count_epochs()))) return;
  const std::string name = name_of_now();
  Files files = files_;
  std::vector<std::string>& kept = files.kept;
  std::erase(kept, name);
  kept.push_back(name);
  if (hook.max_keep_ckpts > 0 && std::ssize(kept) > hook.max_keep_ckpts) {
    files.superseded.insert(files.superseded.end(), kept.begin(), kept.end() - hook.max_keep_ckpts);
    kept.erase(kept.begin(), kept.end() - hook.max_keep_ckpts);
  }
  write(name, std::move(files), true);
}

}  // namespace lockstep
