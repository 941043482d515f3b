// What FullyShardedDataParallel saves and loads: whole tensors, gathered flat by flat.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/parallel/sharding/member_places.h"
#include "lockstep/parallel/sharding/partition.h"
#include "lockstep/parallel/sharding/shard_files.h"
#include "lockstep/parallel/sharding/sharded_core.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {
namespace {

Tensor on_cpu(const Tensor& tensor) {
  const Tensor there = tensor.detach().to(Device::cpu()).contiguous();
  return there.storage().get() == tensor.storage().get() ? there.clone() : there;
}

// A rank that cannot is an error on all of them.
template <class Work>
void all_could(Communicator& communicator, Work&& work) {
  std::string problem;
  try {
    work();
  } catch (const Error& error) {
    problem = error.what();
  }
  compare_notes(communicator, "save_sharded", "", problem);
}

}  // namespace

MemberPlaces ShardedCore::member_places() const {
  std::unordered_map<const ParameterBody*, MemberPlace> by_body;
  for (const ShardedUnit& unit : units_)
    for (const ShardedFlat& flat : unit.flats)
      for (std::size_t i = 0; i < flat.members().size(); ++i)
        by_body.insert_or_assign(flat.members()[i].parameter.body(), MemberPlace{&flat, i});
  MemberPlaces places;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter& parameter, bool) {
    if (const auto at = by_body.find(parameter.body()); at != by_body.end())
      places.add(visitor.full_name(name), at->second);
  };
  visitor.visit(module_);
  return places;
}

// ---- gathering

void ShardedCore::gather_model(const Wants& wants, const Take& take) {
  const NoGrad no_grad;
  std::unordered_map<const ParameterBody*, std::vector<std::string>> names;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter& parameter, bool) {
    names[parameter.body()].push_back(visitor.full_name(name));
  };
  visitor.visit(module_);
  for (const ShardedUnit& unit : units_)
    for (const ShardedFlat& flat : unit.flats) {
      const Tensor all = flat.gather_like(communicator_, flat.shard());
      for (std::size_t i = 0; i < flat.members().size(); ++i)
        for (const std::string& name : names[flat.members()[i].parameter.body()])
          if (wants(name)) take(name, on_cpu(flat.whole_of(all, i)));
    }
  const MemberPlaces places = member_places();
  for (const NamedTensor& named : module_.state_dict())
    if (!places.find(named.name, StateOf::module) && wants(named.name)) take(named.name, on_cpu(named.tensor));
}

void ShardedCore::gather_optimizer(const std::vector<NamedTensor>& mine, const Wants& wants, const Take& take) {
  const NoGrad no_grad;
  const MemberPlaces places = member_places();
  std::map<std::string, std::map<std::string, Tensor>> slots;  // by member and slot
  for (const NamedTensor& entry : mine) {
    if (places.find(entry.name, StateOf::optimizer)) {
      const SlotName name = *slot_name(entry.name);
      slots[name.member][name.slot] = entry.tensor;
    } else if (wants(entry.name)) {
      take(entry.name, on_cpu(entry.tensor));
    }
  }
  const int rank = communicator_.rank();
  for (const ShardedUnit& unit : units_)
    for (const ShardedFlat& flat : unit.flats) {
      std::map<std::string, std::vector<std::size_t>> having;
      for (std::size_t i = 0; i < flat.members().size(); ++i)
        for (const auto& [slot, part] : slots[flat.members()[i].name]) having[slot].push_back(i);
      for (const auto& [slot, indices] : having) {
        const Tensor part = zeros_like(flat.shard());
        for (const std::size_t i : indices) {
          const Tensor& own = slots[flat.members()[i].name][slot];
          piece_of(part, flat.layout().place(i, rank), own.count()).copy_(own);
        }
        const Tensor all = flat.gather_like(communicator_, part);
        for (const std::size_t i : indices) {
          const std::string name = cat("state.", flat.members()[i].name, '.', slot);
          if (wants(name)) take(name, on_cpu(flat.whole_of(all, i)));
        }
      }
    }
}

std::vector<NamedTensor> ShardedCore::whole_state(int to) {
  check_idle("whole_state_dict");
  std::map<std::string, Tensor> found;
  const bool mine = to < 0 || to == communicator_.rank();
  gather_model([&](const std::string&) { return mine; },
               [&](const std::string& name, Tensor whole) { found[name] = std::move(whole); });
  std::vector<NamedTensor> state;
  if (mine)
    for (const NamedTensor& named : module_.state_dict()) state.push_back({named.name, found.at(named.name)});
  return state;
}

std::vector<NamedTensor> ShardedCore::whole_state(const Optimizer& optimizer, int to) {
  check_idle("whole_state_dict");
  std::vector<NamedTensor> state;
  const bool mine = to < 0 || to == communicator_.rank();
  gather_optimizer(
      optimizer.state_dict(module_), [&](const std::string&) { return mine; },
      [&](const std::string& name, Tensor whole) {
        state.push_back({name, std::move(whole)});
      });
  return state;
}

// ---- loading

void ShardedCore::load_whole_state(const std::vector<NamedTensor>& state, bool strict) {
  check_idle("load_whole_state_dict");
  const NoGrad no_grad;
  const MemberPlaces places = member_places();
  std::vector<NamedTensor> parts;
  std::unordered_set<std::string> given;
  std::unordered_map<const ParameterBody*, Tensor> by_body;
  for (const NamedTensor& entry : state) {
    given.insert(entry.name);
    const MemberPlace* const place = places.find(entry.name, StateOf::module);
    parts.push_back(place ? NamedTensor{entry.name, place->part_of(entry, communicator_.rank())} : entry);
    if (place) by_body.emplace(place->member().parameter.body(), parts.back().tensor);
  }
  for (const auto& [name, place] : places.all()) {  // of tied ones files have one
    const auto known = by_body.find(place.member().parameter.body());
    if (!given.contains(name) && known != by_body.end()) parts.push_back({name, known->second});
  }
  module_.load_state_dict(parts, strict);
}

void ShardedCore::load_whole_state(Optimizer& optimizer, const std::vector<NamedTensor>& state) {
  check_idle("load_whole_state_dict");
  const NoGrad no_grad;
  const MemberPlaces places = member_places();
  std::vector<NamedTensor> parts;
  for (const NamedTensor& entry : state) {
    const MemberPlace* const place = places.find(entry.name, StateOf::optimizer);
    parts.push_back(place ? NamedTensor{entry.name, place->part_of(entry, communicator_.rank())} : entry);
  }
  optimizer.load_state_dict(parts, module_);
}

// ---- files

void ShardedCore::save_sharded(const std::string& folder, const Optimizer* optimizer) {
  check_idle("save_sharded");
  all_could(communicator_, [&] {  // those that are there are of files that are written over now
    if (communicator_.rank() != 0) return;
    remove_index(folder, "model");
    if (optimizer) remove_index(folder, "optimizer");
  });
  const MemberPlaces places = member_places();
  const auto saved = [&](const std::string& name, const Tensor& tensor, StateOf of) {
    const MemberPlace* const place = places.find(name, of);
    return Saved{name,
                 (place ? element_count(place->member().shape) : tensor.count()) *
                     static_cast<std::int64_t>(size_of(tensor.dtype())),
                 place != nullptr};
  };
  std::vector<Saved> tensors;
  std::unordered_set<const ParameterBody*> seen;  // tied ones are written once
  for (const std::vector<NamedParameter>& list : {module_.named_parameters(), module_.named_buffers()})
    for (const NamedParameter& named : list)
      if (seen.insert(named.parameter.body()).second)
        tensors.push_back(saved(named.name, named.parameter.tensor(), StateOf::module));
  save(folder, "model", tensors, [&](const Wants& wants, const Take& take) { gather_model(wants, take); });
  if (!optimizer) return;
  const std::vector<NamedTensor> mine = optimizer->state_dict(module_);
  tensors.clear();
  for (const NamedTensor& entry : mine) tensors.push_back(saved(entry.name, entry.tensor, StateOf::optimizer));
  save(folder, "optimizer", tensors,
       [&](const Wants& wants, const Take& take) { gather_optimizer(mine, wants, take); });
}

void ShardedCore::save(const std::string& folder, const std::string& stem, const std::vector<Saved>& tensors,
                       const std::function<void(const Wants&, const Take&)>& gather) {
  const int rank = communicator_.rank(), ranks = communicator_.size();
  std::vector<std::int64_t> bytes, totals(static_cast<std::size_t>(ranks));
  for (const Saved& each : tensors) (each.divided ? bytes.emplace_back() : totals[0]) += each.bytes;
  const std::vector<int> writers = partition_by_size(bytes, totals);
  std::map<std::string, std::string> files;
  std::unordered_set<std::string> own;
  std::int64_t total = 0;
  auto writer = writers.begin();
  for (const Saved& each : tensors) {
    const int by = each.divided ? *writer++ : 0;  // what every rank has, statistics of a norm, say, is rank 0's
    files[each.name] = shard_file(stem, by, ranks);
    if (by == rank) own.insert(each.name);
    total += each.bytes;
  }
  std::vector<NamedTensor> wholes;
  gather([&](const std::string& name) { return own.contains(name); },
         [&](const std::string& name, Tensor whole) {
           wholes.push_back({name, std::move(whole)});
         });
  all_could(communicator_, [&] {
    save_safetensors((std::filesystem::path(folder) / shard_file(stem, rank, ranks)).string(), wholes,
                     {{"format", "pt"}});
  });
  all_could(communicator_, [&] {
    if (rank == 0) write_index(folder, stem, files, total);
  });
}

}  // namespace lockstep::detail
