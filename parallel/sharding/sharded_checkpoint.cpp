// The parts of FullyShardedDataParallel in the checkpoints of all ranks.
#include "lockstep/parallel/sharding/member_places.h"
#include "lockstep/parallel/sharding/sharded_core.h"

namespace lockstep::detail {
namespace {

CheckpointEntry entry_of(std::string name, const Tensor& tensor, const MemberPlace* place, int rank) {
  if (!place) return {std::move(name), tensor};
  CheckpointEntry entry{std::move(name), tensor.detach()};
  const ShardedMember& member = place->member();
  if (element_count(member.shape) == 0)
    entry.tensor = entry.tensor.reshape(member.shape);
  else
    entry.shard = {member.shape, TensorShard::kElements, place->kept(rank).begin, member.format};
  return entry;
}

std::vector<CheckpointEntry> entries_of(const std::vector<NamedTensor>& state, StateOf of, const MemberPlaces& places,
                                        const std::string& prefix, int rank) {
  std::vector<CheckpointEntry> entries;
  entries.reserve(state.size());
  for (const NamedTensor& each : state)
    entries.push_back(entry_of(prefix + each.name, each.tensor, places.find(each.name, of), rank));
  return entries;
}

Tensor read_part(const Checkpoint& checkpoint, const std::string& name, const MemberPlace& place, int rank) {
  const ShardedMember& member = place.member();
  const Shape& there = checkpoint.shape(name);
  LOCKSTEP_CHECK(there == member.shape, "[load_checkpoint] expected ", member.shape, " for '", name, "', got ", there,
                 " in '", checkpoint.path(), '\'');
  const ShardRange run = place.kept(rank);
  return checkpoint.load_elements(name, run.begin, run.count, member.format);
}

// The rank's part of what begins with `prefix`.
std::vector<NamedTensor> read_state(const Checkpoint& checkpoint, StateOf of, const MemberPlaces& places,
                                    const std::string& prefix, int rank) {
  std::vector<NamedTensor> state;
  for (const std::string& full : checkpoint.names()) {
    if (!full.starts_with(prefix)) continue;
    const std::string name = full.substr(prefix.size());
    const MemberPlace* const place = places.find(name, of);
    state.push_back({name, place ? read_part(checkpoint, full, *place, rank) : checkpoint.load(full)});
  }
  return state;
}

}  // namespace

std::vector<CheckpointEntry> ShardedCore::checkpoint_entries(const std::string& prefix) {
  check_idle("checkpoint_entries");
  return entries_of(module_.state_dict(), StateOf::module, member_places(), prefix, communicator_.rank());
}

std::vector<CheckpointEntry> ShardedCore::checkpoint_entries(const Optimizer& optimizer, const std::string& prefix) {
  check_idle("checkpoint_entries");
  return entries_of(optimizer.state_dict(module_), StateOf::optimizer, member_places(), prefix, communicator_.rank());
}

void ShardedCore::load_checkpoint(const Checkpoint& checkpoint, const std::string& prefix) {
  check_idle("load_checkpoint");
  const NoGrad no_grad;
  module_.load_state_dict(read_state(checkpoint, StateOf::module, member_places(), prefix, communicator_.rank()));
}

void ShardedCore::load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint, const std::string& prefix) {
  check_idle("load_checkpoint");
  const NoGrad no_grad;
  optimizer.load_state_dict(read_state(checkpoint, StateOf::optimizer, member_places(), prefix, communicator_.rank()),
                            module_);
}

}  // namespace lockstep::detail
