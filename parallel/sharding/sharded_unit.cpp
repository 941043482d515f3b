#include "lockstep/parallel/sharding/sharded_unit.h"

#include <algorithm>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/memory/alignment.h"
#include "lockstep/tensor/engine/leaf_node.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

// The parameter has these elements from now on.
void become(ParameterBody& body, const Tensor& elements) {
  body.home.set_data(elements);
  body.shape = elements.shape();
  if (!body.leaf) return;
  auto& leaf = static_cast<LeafNode&>(*body.leaf);
  leaf.shape = elements.shape();
  leaf.format = elements.memory_format();
  leaf.move_to(elements.device(), elements.dtype());
}

void become_first(ParameterBody& body, const Tensor& part, bool trained) {
  if (body.home.defined()) {
    if (body.slabs) leave_slabs(body);
    body.drop_slots();
    LOCKSTEP_EDGE(body.home.storage()->record_use(current_stream(body.home.device())));
    part.storage()->set_version(body.home.version() + 1);
    become(body, part);
    if (body.leaf) static_cast<LeafNode&>(*body.leaf).grad = Tensor();
    return;
  }
  body.home = part.detach();
  body.shape = part.shape();
  if (!trained) return;
  body.home.set_requires_grad(true);
  body.set_leaf(body.home.edge().node);
}

}  // namespace

Tensor in_memory_order(const Tensor& tensor, MemoryFormat format) {
  const Tensor dense = tensor.detach().contiguous(format);
  return Tensor::over(dense.storage(), dense.dtype(), {dense.count()}, {1}, dense.storage_offset());
}

Tensor piece_of(const Tensor& flat, std::int64_t begin, std::int64_t count) {
  const std::size_t size = size_of(flat.dtype());
  auto storage =
      Storage::slice(flat.storage(), static_cast<std::size_t>(begin) * size, static_cast<std::size_t>(count) * size);
  return Tensor::over(std::move(storage), flat.dtype(), {count}, {1});
}

ShardedFlat::ShardedFlat(const std::string& unit, std::vector<ShardedMember> members, bool trained,
                         Communicator& communicator, const FullyShardedOptions& options)
    : members_(std::move(members)),
      trained_(trained),
      dtype_(members_[0].parameter.dtype()),
      computed_(is_floating(dtype_) ? options.mixed_precision.param_dtype.value_or(dtype_) : dtype_),
      reduced_(is_floating(dtype_) ? options.mixed_precision.reduces(dtype_) : dtype_),
      rank_(communicator.rank()),
      shard_of_rank_(std::make_shared<const Shard>(
          Shard{.dim = Shard::kElements, .rank = communicator.rank(), .ranks = communicator.size()})) {
  const NoGrad no_grad;
  const Device device = communicator.device();
  const std::size_t narrowest = std::min({size_of(dtype_), size_of(computed_), size_of(reduced_)});
  std::vector<std::int64_t> counts;
  for (const ShardedMember& member : members_) counts.push_back(element_count(member.shape));
  // Every tensor and every part begins as tensors of their own do.
  layout_ = ShardLayout(counts, static_cast<std::int64_t>(kMemoryAlignment / narrowest), communicator.size());
  shard_ = empty({layout_.shard}, {.dtype = dtype_, .device = device});
  const Tensor whole = zeros({layout_.total()}, {.dtype = dtype_, .device = device});
  for (std::size_t i = 0; i < members_.size(); ++i) {
    ShardedMember& member = members_[i];
    Tensor place = piece_of(whole, layout_.whole[i].begin, layout_.whole[i].count);
    if (member.parameter.body()->home.defined()) {
      place.copy_(in_memory_order(member.parameter.tensor(), member.format));
    } else if (communicator.rank() == 0 || !options.init_sync) {
      const Tensor shaped =
          Tensor::over(place.storage(), dtype_, member.shape, format_strides(member.shape, member.format));
      LOCKSTEP_CHECK(options.initialise,
                     "[FullyShardedDataParallel] expected elements, or the option initialise, but '", member.name,
                     "' of ", unit, " is uninitialised");
      options.initialise(member.name, shaped);
    }
  }
  if (options.init_sync) communicator.broadcast(whole, 0);
  shard_.copy_(piece_of(whole, rank_ * layout_.shard, layout_.shard));
  for (std::size_t i = 0; i < members_.size(); ++i) {
    ShardedMember& member = members_[i];
    member.part = piece_of(shard_, layout_.place(i, rank_), layout_.kept(i, rank_).count);
    become_first(*member.parameter.body(), member.part, trained);
    member.division = std::exchange(member.parameter.body()->shard, shard_of_rank_);
    member.memory = Storage::vacant(device, static_cast<std::size_t>(counts[i]) * size_of(computed_));
  }
}

void ShardedFlat::check_unchanged(const std::string& unit) const {
  for (const ShardedMember& member : members_) {
    const ParameterBody& body = *member.parameter.body();
    if (body.home.storage().get() != member.part.storage().get())
      throw Error(cat("[FullyShardedDataParallel] expected parameters to keep their memory, but '", member.name,
                      "' of ", unit, " was moved, converted or replaced; wrap the module again"));
    if (member.parameter.requires_grad() != trained_)
      throw Error(cat("[FullyShardedDataParallel] expected parameters to be trained or frozen as they were, but '",
                      member.name, "' of ", unit, " was ", trained_ ? "frozen" : "unfrozen",
                      "; wrap the module again"));
  }
}

void ShardedFlat::gather(Communicator& communicator, const std::string& unit) {
  check_unchanged(unit);
  const NoGrad no_grad;
  // What was saved of other elements is void.
  std::uint64_t versions = 0;
  for (const ShardedMember& member : members_) versions += member.part.version();
  if (versions != versions_)
    for (const ShardedMember& member : members_) member.memory->bump_version();
  versions_ = versions;
  const Tensor input = shard_.to(computed_);
  gathered_ = empty({layout_.total()}, {.dtype = computed_, .device = communicator.device()});
  communicator.all_gather(input, gathered_);
  for (std::size_t i = 0; i < members_.size(); ++i)
    members_[i].memory->lend(gathered_.storage(),
                             static_cast<std::size_t>(layout_.whole[i].begin) * size_of(computed_));
}

void ShardedFlat::use_on(const Stream& stream) const { LOCKSTEP_EDGE(gathered_.storage()->record_use(stream)); }

void ShardedFlat::give_back() {
  for (const ShardedMember& member : members_) member.memory->lend({});
  gathered_ = Tensor();
}

Tensor ShardedFlat::gather_like(Communicator& communicator, const Tensor& part) const {
  Tensor all = empty({layout_.total()}, {.dtype = part.dtype(), .device = communicator.device()});
  communicator.all_gather(part, all);
  return all;
}

Tensor ShardedFlat::whole_of(const Tensor& gathered, std::size_t i) const {
  const Tensor piece = piece_of(gathered, layout_.whole[i].begin, layout_.whole[i].count);
  return Tensor::over(piece.storage(), piece.dtype(), members_[i].shape,
                      format_strides(members_[i].shape, members_[i].format));
}

void ShardedFlat::show(const Tensor& gathered) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    ParameterBody& body = *members_[i].parameter.body();
    if (body.leaf) members_[i].part_gradient = std::exchange(static_cast<LeafNode&>(*body.leaf).grad, Tensor());
    become(body, whole_of(gathered, i));
    body.shard = members_[i].division;
  }
}

void ShardedFlat::hide(bool write_back) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    ShardedMember& member = members_[i];
    ParameterBody& body = *member.parameter.body();
    const ShardRange kept = layout_.kept(i, rank_);
    LOCKSTEP_EDGE(body.home.storage()->record_use(current_stream(shard_.device())));
    if (write_back && kept.count > 0)
      member.part.copy_(in_memory_order(body.home, member.format).narrow(0, kept.begin, kept.count));
    become(body, member.part);
    body.shard = shard_of_rank_;
    if (body.leaf) static_cast<LeafNode&>(*body.leaf).grad = std::exchange(member.part_gradient, Tensor());
  }
}

// ---- gradients

// As DistributedDataParallel's buckets: divided in the dtype of the parameters, then rounded to that of the reduction.
Tensor ShardedFlat::pack(std::span<Tensor> gradients, int divisor) {
  const Device device = shard_.device();
  Tensor packed = empty({layout_.total()}, {.dtype = reduced_, .device = device});
  std::int64_t end = 0;
  const auto fill_gap = [&](std::int64_t begin) {
    if (begin > end) piece_of(packed, end, begin - end).zero_();
  };
  for (std::size_t i = 0; i < members_.size(); ++i) {
    ShardedMember& member = members_[i];
    const ShardRange& whole = layout_.whole[i];
    fill_gap(whole.begin);
    end = whole.end();
    Tensor place = piece_of(packed, whole.begin, whole.count);
    Tensor gradient = gradients.empty() ? Tensor() : std::exchange(gradients[i], Tensor());
    if (gradient.defined()) gradient = gradient.detach().to(dtype_);
    if (member.local_gradient.defined()) {
      LOCKSTEP_EDGE(member.local_gradient.storage()->record_use(current_stream(device)));
      if (gradient.defined()) member.local_gradient.add_(gradient);
      gradient = std::exchange(member.local_gradient, Tensor());
    }
    if (!gradient.defined()) {
      place.zero_();
      continue;
    }
    const Tensor flat = in_memory_order(gradient, member.format);
    const bool rounds = reduced_ != dtype_;
    const Tensor divided = rounds ? fresh({whole.count}, dtype_, device) : place;
    launch(device, UnaryArgs{.op = UnaryOp::mul_scalar, .in = flat.in(), .out = divided.out(), .a = 1.0 / divisor});
    if (rounds) place.copy_(divided);
  }
  fill_gap(layout_.total());
  return packed;
}

void ShardedMember::keep(const Tensor& gradient, DType dtype) {
  if (!gradient.defined()) return;
  const Tensor here = gradient.detach().to(dtype);
  if (local_gradient.defined())
    local_gradient.add_(here);
  else
    local_gradient = here.clone();  // somebody else may see its elements
}

bool ShardedFlat::has_local_gradients() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& m) { return m.local_gradient.defined(); });
}

void ShardedFlat::take_gradient(const Tensor& reduced) {
  LOCKSTEP_EDGE(reduced.storage()->record_use(current_stream(reduced.device())));
  const Tensor gradient = reduced.to(dtype_);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto& leaf = static_cast<LeafNode&>(*members_[i].parameter.body()->leaf);
    const Tensor part = piece_of(gradient, layout_.place(i, rank_), layout_.kept(i, rank_).count);
    if (leaf.grad.defined())
      leaf.grad.add_(part);
    else
      leaf.grad = part;
    leaf.run_post_accumulate_hooks();
  }
}

bool ShardedUnit::trains() const {
  return std::any_of(flats.begin(), flats.end(), [](const ShardedFlat& flat) { return flat.trained(); });
}

}  // namespace lockstep::detail
