// The parts of FullyShardedDataParallel in the checkpoints of all ranks.
#include "lockstep/parallel/sharding/sharded_core.h"
#include "lockstep/parallel/sharding/sharded_unit.h"
#include "lockstep/parallel/sharding/slot_name.h"

namespace lockstep::detail {
namespace {

// Where the run of elements lies that the rank keeps of a member.
struct Run {
  const ShardedMember& member;
  ShardRange kept;
};
Run run_of(const std::pair<const ShardedFlat*, std::size_t>& at, int rank) {
  return {at.first->members()[at.second], at.first->kept(at.second, rank)};
}

CheckpointEntry entry_of(std::string name, const Tensor& part, const Run& run) {
  CheckpointEntry entry{std::move(name), part.detach()};
  if (element_count(run.member.shape) == 0)
    entry.tensor = entry.tensor.reshape(run.member.shape);
  else
    entry.shard = {run.member.shape, TensorShard::kElements, run.kept.begin, run.member.format};
  return entry;
}

Tensor read_part(const Checkpoint& checkpoint, const std::string& name, const Run& run) {
  const Shape& there = checkpoint.shape(name);
  LOCKSTEP_CHECK(there == run.member.shape, "[load_checkpoint] expected ", run.member.shape, " for '", name, "', got ",
                 there, " in '", checkpoint.path(), '\'');
  return checkpoint.load_elements(name, run.kept.begin, run.kept.count, run.member.format);
}

}  // namespace

std::vector<CheckpointEntry> ShardedCore::checkpoint_entries(const std::string& prefix) {
  check_idle("checkpoint_entries");
  const auto members = named_members();
  std::vector<CheckpointEntry> entries;
  for (const NamedTensor& named : module_.state_dict()) {
    const auto at = members.find(named.name);
    if (at == members.end())
      entries.push_back({prefix + named.name, named.tensor});
    else
      entries.push_back(entry_of(prefix + named.name, named.tensor, run_of(at->second, communicator_.rank())));
  }
  return entries;
}

std::vector<CheckpointEntry> ShardedCore::checkpoint_entries(const Optimizer& optimizer, const std::string& prefix) {
  check_idle("checkpoint_entries");
  const auto members = named_members();
  std::vector<CheckpointEntry> entries;
  for (const NamedTensor& named : optimizer.state_dict(module_)) {
    const auto slot = slot_name(named.name);
    const auto at = slot ? members.find(slot->member) : members.end();
    if (at == members.end())
      entries.push_back({prefix + named.name, named.tensor});
    else
      entries.push_back(entry_of(prefix + named.name, named.tensor, run_of(at->second, communicator_.rank())));
  }
  return entries;
}

void ShardedCore::load_checkpoint(const Checkpoint& checkpoint, const std::string& prefix) {
  check_idle("load_checkpoint");
  const NoGrad no_grad;
  const auto members = named_members();
  std::vector<NamedTensor> state;
  for (const std::string& full : checkpoint.names()) {
    if (!full.starts_with(prefix)) continue;
    const std::string name = full.substr(prefix.size());
    const auto at = members.find(name);
    state.push_back({name, at == members.end()
                               ? checkpoint.load(full)
                               : read_part(checkpoint, full, run_of(at->second, communicator_.rank()))});
  }
  module_.load_state_dict(state);
}

void ShardedCore::load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint, const std::string& prefix) {
  check_idle("load_checkpoint");
  const NoGrad no_grad;
  const auto members = named_members();
  std::vector<NamedTensor> state;
  for (const std::string& full : checkpoint.names()) {
    if (!full.starts_with(prefix)) continue;
    const std::string name = full.substr(prefix.size());
    const auto slot = slot_name(name);
    const auto at = slot ? members.find(slot->member) : members.end();
    state.push_back({name, at == members.end()
                               ? checkpoint.load(full)
                               : read_part(checkpoint, full, run_of(at->second, communicator_.rank()))});
  }
  optimizer.load_state_dict(state, module_);
}

}  // namespace lockstep::detail
