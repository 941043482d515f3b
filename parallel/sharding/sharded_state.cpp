// What FullyShardedDataParallel saves and loads: whole tensors, gathered flat by flat.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/parallel/sharding/partition.h"
#include "lockstep/parallel/sharding/shard_files.h"
#include "lockstep/parallel/sharding/sharded_core.h"
#include "lockstep/parallel/sharding/sharded_unit.h"
#include "lockstep/parallel/sharding/slot_name.h"
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

}  // namespace

std::optional<SlotName> slot_name(const std::string& entry) {
  constexpr std::string_view kPrefix = "state.";
  const std::size_t dot = entry.rfind('.');
  if (!entry.starts_with(kPrefix) || dot == std::string::npos || dot <= kPrefix.size()) return std::nullopt;
  SlotName name{entry.substr(kPrefix.size(), dot - kPrefix.size()), entry.substr(dot + 1)};
  if (name.slot == "step" || name.slot == "group") return std::nullopt;
  return name;
}

std::map<std::string, std::pair<const ShardedFlat*, std::size_t>> ShardedCore::named_members() const {
  std::map<std::string, std::pair<const ShardedFlat*, std::size_t>> found;
  std::unordered_map<const ParameterBody*, std::pair<const ShardedFlat*, std::size_t>> by_body;
  for (const ShardedUnit& unit : units_)
    for (const ShardedFlat& flat : unit.flats)
      for (std::size_t i = 0; i < flat.members().size(); ++i) by_body[flat.members()[i].parameter.body()] = {&flat, i};
  MemberVisitor visitor;  // tied ones under all of their names
  visitor.parameter = [&](std::string_view name, Parameter& parameter, bool) {
    if (const auto at = by_body.find(parameter.body()); at != by_body.end())
      found.emplace(visitor.full_name(name), at->second);
  };
  visitor.visit(module_);
  return found;
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
  std::unordered_set<const ParameterBody*> sharded;
  for (const ShardedUnit& unit : units_)
    for (const ShardedFlat& flat : unit.flats) {
      const Tensor all = flat.gather_like(communicator_, flat.shard());
      for (std::size_t i = 0; i < flat.members().size(); ++i) {
        const ParameterBody* const body = flat.members()[i].parameter.body();
        sharded.insert(body);
        for (const std::string& name : names[body])
          if (wants(name)) take(name, on_cpu(flat.whole_of(all, i)));
      }
    }
  for (const NamedTensor& named : module_.state_dict())
    if (named_members().count(named.name) == 0 && wants(named.name)) take(named.name, on_cpu(named.tensor));
}

void ShardedCore::gather_optimizer(const std::vector<NamedTensor>& mine, const Wants& wants, const Take& take) {
  const NoGrad no_grad;
  const auto members = named_members();
  std::map<std::string, std::map<std::string, Tensor>> slots;  // by member and slot
  for (const NamedTensor& entry : mine) {
    const auto name = slot_name(entry.name);
    if (name && members.contains(name->member))
      slots[name->member][name->slot] = entry.tensor;
    else if (wants(entry.name))
      take(entry.name, on_cpu(entry.tensor));
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
  const auto members = named_members();
  const int rank = communicator_.rank();
  std::vector<NamedTensor> parts;
  std::unordered_set<std::string> given;
  std::unordered_map<const ParameterBody*, Tensor> by_body;
  for (const NamedTensor& entry : state) {
    given.insert(entry.name);
    const auto at = members.find(entry.name);
    if (at == members.end()) {
      parts.push_back(entry);
      continue;
    }
    const auto& [flat, i] = at->second;
    const ShardedMember& member = flat->members()[i];
    LOCKSTEP_CHECK(entry.tensor.shape() == member.shape, "[load_whole_state_dict] expected ", member.shape, " for '",
                   entry.name, "', got ", entry.tensor.shape());
    const ShardRange kept = flat->kept(i, rank);
    const Tensor part = in_memory_order(entry.tensor, member.format).narrow(0, kept.begin, kept.count);
    by_body.emplace(member.parameter.body(), part);
    parts.push_back({entry.name, part});
  }
  for (const auto& [name, at] : members) {  // of tied ones files have one
    const auto known = by_body.find(at.first->members()[at.second].parameter.body());
    if (!given.contains(name) && known != by_body.end()) parts.push_back({name, known->second});
  }
  module_.load_state_dict(parts, strict);
}

void ShardedCore::load_whole_state(Optimizer& optimizer, const std::vector<NamedTensor>& state) {
  check_idle("load_whole_state_dict");
  const NoGrad no_grad;
  const auto members = named_members();
  std::vector<NamedTensor> parts;
  for (const NamedTensor& entry : state) {
    const auto name = slot_name(entry.name);
    const auto at = name ? members.find(name->member) : members.end();
    if (at == members.end()) {
      parts.push_back(entry);
      continue;
    }
    const auto& [flat, i] = at->second;
    const ShardedMember& member = flat->members()[i];
    LOCKSTEP_CHECK(entry.tensor.shape() == member.shape, "[load_whole_state_dict] expected ", member.shape, " for '",
                   entry.name, "', got ", entry.tensor.shape());
    const ShardRange kept = flat->kept(i, communicator_.rank());
    parts.push_back({entry.name, in_memory_order(entry.tensor, member.format).narrow(0, kept.begin, kept.count)});
  }
  optimizer.load_state_dict(parts, module_);
}

// ---- files

void ShardedCore::save_sharded(const std::string& folder, const Optimizer* optimizer) {
  check_idle("save_sharded");
  const auto members = named_members();
  std::vector<std::pair<std::string, std::int64_t>> sizes;
  std::unordered_set<const ParameterBody*> seen;  // tied ones are written once
  for (const std::vector<NamedParameter>& list : {module_.named_parameters(), module_.named_buffers()})
    for (const NamedParameter& named : list) {
      const auto at = members.find(named.name);
      const Shape& shape =
          at == members.end() ? named.parameter.shape() : at->second.first->members()[at->second.second].shape;
      if (seen.insert(named.parameter.body()).second)
        sizes.emplace_back(named.name,
                           element_count(shape) * static_cast<std::int64_t>(size_of(named.parameter.dtype())));
    }
  save(folder, "model", sizes, [&](const Wants& wants, const Take& take) { gather_model(wants, take); });
  if (!optimizer) return;
  const std::vector<NamedTensor> mine = optimizer->state_dict(module_);
  sizes.clear();
  for (const NamedTensor& entry : mine) {
    const auto name = slot_name(entry.name);
    const auto at = name ? members.find(name->member) : members.end();
    const std::int64_t count = at == members.end()
                                   ? entry.tensor.count()
                                   : element_count(at->second.first->members()[at->second.second].shape);
    sizes.emplace_back(entry.name, count * static_cast<std::int64_t>(size_of(entry.tensor.dtype())));
  }
  save(folder, "optimizer", sizes, [&](const Wants& wants, const Take& take) { gather_optimizer(mine, wants, take); });
}

void ShardedCore::save(const std::string& folder, const std::string& stem,
                       const std::vector<std::pair<std::string, std::int64_t>>& sizes,
                       const std::function<void(const Wants&, const Take&)>& gather) {
  const int rank = communicator_.rank(), ranks = communicator_.size();
  std::vector<std::int64_t> bytes, totals(static_cast<std::size_t>(ranks));
  for (const auto& [name, size] : sizes) bytes.push_back(size);
  const std::vector<int> writers = partition_by_size(bytes, totals);
  std::map<std::string, std::string> files;
  std::unordered_set<std::string> own;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    files[sizes[i].first] = shard_file(stem, writers[i], ranks);
    if (writers[i] == rank) own.insert(sizes[i].first);
    total += bytes[i];
  }
  std::vector<NamedTensor> tensors;
  gather([&](const std::string& name) { return own.contains(name); },
         [&](const std::string& name, Tensor whole) {
           tensors.push_back({name, std::move(whole)});
         });
  const auto all_could = [&](auto&& write) {  // a rank that cannot is an error on all of them
    std::string problem;
    try {
      write();
    } catch (const Error& error) {
      problem = error.what();
    }
    compare_notes(communicator_, "save_sharded", "", problem);
  };
  all_could([&] {
    save_safetensors((std::filesystem::path(folder) / shard_file(stem, rank, ranks)).string(), tensors,
                     {{"format", "pt"}});
  });
  all_could([&] {
    if (rank == 0) write_index(folder, stem, files, total);
  });
}

}  // namespace lockstep::detail
