#include "lockstep/parallel/sharding/zero_redundancy_optimizer.h"

#include <charconv>
#include <map>
#include <sstream>
#include <unordered_map>

#include "lockstep/parallel/ddp/broadcast_coalesced.h"
#include "lockstep/parallel/sharding/partition.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {

ParameterOwners::ParameterOwners(Communicator& communicator)
    : communicator_(communicator), totals_(static_cast<std::size_t>(communicator.size())) {}

void ParameterOwners::follow(const Optimizer& optimizer) {
  for (; groups_ < optimizer.group_count(); ++groups_) {
    std::vector<std::int64_t> sizes;
    for (const Parameter& parameter : optimizer.group_parameters(groups_))
      sizes.push_back(element_count(parameter.shape()));
    const std::vector<int> more = partition_by_size(sizes, totals_);
    owners_.insert(owners_.end(), more.begin(), more.end());
  }
}

ParameterOwners::OwnOnly::OwnOnly(const ParameterOwners& owners, const Optimizer& optimizer) {
  const std::vector<Parameter>& parameters = optimizer.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (owners.owns(i)) continue;
    const SparseGradient rows = parameters[i].sparse_grad();
    hidden_.push_back({parameters[i], rows.defined() ? Tensor() : parameters[i].grad(), rows});
    parameters[i].zero_grad();
  }
}

ParameterOwners::OwnOnly::~OwnOnly() {
  for (const Hidden& hidden : hidden_) {
    if (hidden.rows.defined())
      hidden.parameter.set_sparse_grad(hidden.rows);
    else
      hidden.parameter.set_grad(hidden.gradient);
  }
}

void ParameterOwners::broadcast(const Optimizer& optimizer) const {
  const NoGrad no_grad;
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    std::vector<Tensor> theirs;
    for (std::size_t i = 0; i < owners_.size(); ++i)
      if (owners_[i] == rank) theirs.push_back(optimizer.parameters()[i].tensor());
    if (!theirs.empty()) broadcast_coalesced(communicator_, theirs, rank);
  }
}

void ParameterOwners::share_gradients(Optimizer& optimizer, int root) const {
  const NoGrad no_grad;
  const std::vector<Parameter>& parameters = optimizer.parameters();
  std::string mine;
  if (communicator_.rank() == root) {
    for (const Parameter& parameter : parameters) {
      if (parameter.sparse_grad().defined())
        throw NotSupported(
            cat("[ZeroRedundancyOptimizer] expected dense gradients in a join, but '", parameter.name(), "' has rows"));
      mine += parameter.grad().defined() ? '1' : '0';
    }
    std::ostringstream rates;
    for (std::size_t g = 0; g < optimizer.group_count(); ++g)
      rates << ' ' << std::hexfloat << optimizer.lr(g) << ' ' << optimizer.momentum(g);
    mine += rates.str();
  }
  const std::string theirs = communicator_.broadcast_bytes(mine, root);
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (theirs[i] != '1') {
      parameters[i].zero_grad();
      continue;
    }
    if (!parameters[i].grad().defined()) parameters[i].set_grad(zeros_like(parameters[i].tensor().detach()));
    gradients.push_back(parameters[i].grad());
  }
  if (!gradients.empty()) broadcast_coalesced(communicator_, gradients, root);
  const char* at = theirs.c_str() + parameters.size();
  for (std::size_t g = 0; g < optimizer.group_count(); ++g) {
    char* end = nullptr;
    optimizer.set_lr(g, std::strtod(at, &end));
    const double momentum = std::strtod(end, &end);
    if (momentum != optimizer.momentum(g)) optimizer.set_momentum(g, momentum);
    at = end;
  }
}

// ---- state

std::vector<std::string> parameter_keys(const Optimizer& optimizer, const ModuleBase* module) {
  std::unordered_map<const ParameterBody*, std::string> names;
  if (module)
    for (const NamedParameter& named : module->named_parameters()) names.emplace(named.parameter.body(), named.name);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i)
    keys.push_back(module ? names[optimizer.parameters()[i].body()] : cat(i));
  return keys;
}

namespace {

// The parameter's key and what is remembered in an entry; an empty key for other entries.
std::pair<std::string, std::string> split_name(const std::string& entry) {
  const std::size_t dot = entry.rfind('.');
  if (!entry.starts_with("state.") || dot < 6 || entry.ends_with(".group")) return {};
  return {entry.substr(6, dot - 6), entry.substr(dot + 1)};
}

}  // namespace

std::vector<NamedTensor> ParameterOwners::own_part(const std::vector<NamedTensor>& state,
                                                   const std::vector<std::string>& keys) const {
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < keys.size(); ++i) numbers.emplace(keys[i], i);
  std::vector<NamedTensor> own;
  for (const NamedTensor& entry : state) {
    const auto at = numbers.find(split_name(entry.name).first);
    if (at == numbers.end() || at->second >= owners_.size() || owns(at->second)) own.push_back(entry);
  }
  return own;
}

std::vector<NamedTensor> ParameterOwners::gather(const std::vector<NamedTensor>& mine,
                                                 const std::vector<std::string>& keys, int to) const {
  const NoGrad no_grad;
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < keys.size(); ++i) numbers.emplace(keys[i], i);
  // What is remembered of the parameters that a rank owns, by parameter: names and dtypes of the entries.
  std::string said;
  std::map<std::string, Tensor> own;
  for (const NamedTensor& entry : mine)
    if (const auto [key, what] = split_name(entry.name); numbers.contains(key)) {
      said += cat(entry.name, '\n', static_cast<int>(entry.tensor.dtype()), '\n', entry.tensor.shape().rank(), '\n');
      for (int d = 0; d < entry.tensor.rank(); ++d) said += cat(entry.tensor.size(d), '\n');
      own[entry.name] = entry.tensor;
    }
  const bool wanted = to < 0 || to == communicator_.rank();
  std::map<std::string, Tensor> all;
  const std::vector<std::string> everyone = communicator_.all_gather_bytes(said);
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    std::istringstream lines(everyone[static_cast<std::size_t>(rank)]);
    std::string name;
    while (std::getline(lines, name)) {
      int dtype = 0, rank_of_tensor = 0;
      lines >> dtype >> rank_of_tensor;
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(rank_of_tensor));
      for (std::int64_t& size : sizes) lines >> size;
      lines.ignore(1);
      const Shape shape{std::span<const std::int64_t>(sizes)};
      const Device device = communicator_.device();
      const Tensor piece = rank == communicator_.rank()
                               ? own.at(name).to(device).contiguous().clone()
                               : empty(shape, {.dtype = static_cast<DType>(dtype), .device = device});
      if (piece.count() > 0) communicator_.broadcast(piece, rank);
      if (wanted) all[name] = piece.to(Device::cpu());
    }
  }
  if (!wanted) return {};
  std::vector<NamedTensor> state;
  for (const NamedTensor& entry : mine)
    if (!own.contains(entry.name)) state.push_back({entry.name, entry.tensor.to(Device::cpu())});
  for (const auto& [name, tensor] : all) state.push_back({name, tensor});
  return state;
}

}  // namespace lockstep::detail
