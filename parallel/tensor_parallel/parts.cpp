#include "lockstep/parallel/tensor_parallel/parts.h"

#include <cmath>
#include <unordered_map>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/shard.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

template <class F>
void for_each_member(const ModuleBase& module, F&& body) {
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter& parameter, bool) {
    body(visitor.full_name(name), parameter);
  };
  visitor.visit(module);
}

// Those of FullyShardedDataParallel lie in another way, over ranks of their own.
void check_divided(const char* call, const std::string& what, const Shard& shard) {
  LOCKSTEP_CHECK(
      shard.dim != Shard::kElements, "[", call, "] expected ", what,
      " to be divided along a dimension, got elements of it that FullyShardedDataParallel keeps: use the "
      "wrapper's ",
      call == std::string("clip_grad_norm") ? "clip_grad_norm" : "whole_state_dict and load_whole_state_dict");
}

// At the root; undefined elsewhere.
Tensor gathered(const Tensor& part, const Shard& shard, Communicator& ranks, int root) {
  const Tensor own = part.contiguous();
  const bool is_root = ranks.rank() == root;
  Shape shape{ranks.size()};
  for (const std::int64_t size : own.shape()) shape.push_back(size);
  const Tensor all = is_root ? detail::fresh(shape, own.dtype(), own.device()) : Tensor();
  ranks.gather(own, all, root);
  return is_root ? shard.whole_of(unbind(all)) : Tensor();
}

}  // namespace

std::vector<NamedTensor> whole_state(const ModuleBase& module, Communicator& ranks, int root) {
  LOCKSTEP_CHECK(root >= 0 && root < ranks.size(), "[whole_state] expected a root below ", ranks.size(), " ranks, got ",
                 root);
  const NoGrad no_grad;
  std::vector<NamedTensor> state;
  for_each_member(module, [&](std::string name, const Parameter& parameter) {
    Tensor whole = parameter.tensor().detach();
    if (const Shard* shard = shard_of(parameter)) {
      check_divided("whole_state", cat('\'', name, '\''), *shard);
      LOCKSTEP_CHECK(shard->ranks == ranks.size() && shard->rank == ranks.rank(), "[whole_state] expected '", name,
                     "' to be a part of rank ", ranks.rank(), " of ", ranks.size(), ", got one of rank ", shard->rank,
                     " of ", shard->ranks);
      if (ranks.size() > 1) whole = gathered(whole, *shard, ranks, root);
    }
    if (ranks.rank() == root) state.push_back({std::move(name), whole.to(Device::cpu())});
  });
  return state;
}

std::vector<NamedTensor> own_parts(const ModuleBase& module, std::vector<NamedTensor> whole) {
  const NoGrad no_grad;
  std::unordered_map<std::string, Parameter> parts;
  for_each_member(module, [&](std::string name, const Parameter& parameter) {
    if (shard_of(parameter)) parts.emplace(std::move(name), parameter);
  });
  for (auto& [name, tensor] : whole) {
    const auto found = parts.find(name);
    if (found == parts.end()) continue;
    const Shard& shard = *shard_of(found->second);
    check_divided("own_parts", cat('\'', name, '\''), shard);
    const Shape expected = shard.whole_shape(found->second.shape());
    LOCKSTEP_CHECK(tensor.defined() && tensor.shape() == expected, "[own_parts] expected all of '", name, "', ",
                   expected, ", of which rank ", shard.rank, " of ", shard.ranks, " has a part, got ", tensor);
    tensor = shard.part_of(tensor);
  }
  return whole;
}

Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm, Communicator& ranks,
                      const ClipNormOptions& options) {
  const double type = options.norm_type;
  detail::check_clip(max_norm, type);
  const NoGrad no_grad;
  std::vector<Parameter> divided, whole;
  DType dtype = DType::f32;  // the same on every rank
  for (const Parameter& parameter : parameters) {
    const Shard* const shard = shard_of(parameter);
    if (shard) check_divided("clip_grad_norm", cat("parameter ", &parameter - parameters.data()), *shard);
    (shard ? divided : whole).push_back(parameter);
    dtype = promote_types(dtype, parameter.dtype());
  }
  const TensorOptions as{.dtype = dtype, .device = ranks.device()};
  const auto norm = [&](std::span<const Parameter> some) {
    const Tensor of_some = detail::gradient_norm(some, type);
    return of_some.defined() ? of_some.to(as.device).to(dtype).reshape({1}).contiguous() : zeros({1}, as);
  };
  const Tensor of_parts = empty({ranks.size()}, as);
  ranks.all_gather(norm(divided), of_parts);
  Tensor total = detail::norm_of_norms(cat({of_parts, norm(whole)}), type);
  if (options.error_if_nonfinite) detail::check_norm(total, parameters.size());
  detail::scale_to_norm(parameters, total, max_norm);
  return total;
}

}  // namespace lockstep
