// A unit of FullyShardedDataParallel: parameters that are gathered, given back and reduced together. Private to the
// library.
//
// A unit has a flat piece of memory per dtype, and another one for parameters that are not trained. This rank's part of
// it is what the parameters of the module are: one-dimensional, maybe without elements. The whole of each parameter is
// a tensor over a storage that is lent memory while the unit is gathered; what autograd has saved of it is there again
// when it is gathered again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/sharding/options.h"
#include "lockstep/parallel/sharding/shard_layout.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/nn/shard.h"

namespace lockstep::detail {

// The elements of `tensor` in the order in which they lie in memory in `format`, in one dimension.
Tensor in_memory_order(const Tensor& tensor, MemoryFormat format);
// `count` elements of a flat tensor from `begin` on, with a version of its own.
Tensor piece_of(const Tensor& flat, std::int64_t begin, std::int64_t count);

struct ShardedMember {
  std::string name;
  Parameter parameter;  // this rank's part
  Shape shape;          // of the whole
  MemoryFormat format = MemoryFormat::contiguous;
  Ref<Storage> memory = {};                    // of the whole, in the dtype of computation; lent
  Tensor part = {};                            // what the parameter must be
  Tensor local_gradient = {};                  // whole, of backwards without communication
  Tensor part_gradient = {};                   // while the whole is shown
  std::shared_ptr<const Shard> division = {};  // of the whole, by somebody else

  // Adds to local_gradient; undefined: nothing.
  void keep(const Tensor& gradient, DType dtype);
};

// Parameters of one dtype, that are all trained or all not.
class ShardedFlat {
 public:
  // Makes the parameters of `members` this rank's parts. Blocks, with `sync` on all ranks.
  ShardedFlat(const std::string& unit, std::vector<ShardedMember> members, bool trained, Communicator& communicator,
              const FullyShardedOptions& options);

  bool trained() const { return trained_; }
  DType dtype() const { return dtype_; }
  DType computed() const { return computed_; }
  std::vector<ShardedMember>& members() { return members_; }
  const std::vector<ShardedMember>& members() const { return members_; }
  const ShardLayout& layout() const { return layout_; }
  const Tensor& shard() const { return shard_; }
  // Of the i-th member, in its part of the whole.
  ShardRange kept(std::size_t i, int rank) const { return layout_.kept(i, rank); }

  // Enqueues the gather on the current stream, where the memory comes from. Throws Error for a parameter that is not
  // what it was, naming it and the unit.
  void gather(Communicator& communicator, const std::string& unit);
  void use_on(const Stream& stream) const;
  void give_back();
  // The elements of all ranks' `part`, which is like shard(), [total()].
  Tensor gather_like(Communicator& communicator, const Tensor& part) const;
  // The i-th whole of what gather_like gave, a part of it.
  Tensor whole_of(const Tensor& gathered, std::size_t i) const;

  // The parameters are these wholes, until hide(), which may keep the parts of what they are then.
  void show(const Tensor& gathered);
  void hide(bool write_back);

  // What is to be reduced: the gradients (undefined: none) and those that stayed, divided by `divisor`; on the current
  // stream. They are forgotten.
  Tensor pack(std::span<Tensor> gradients, int divisor);
  bool has_local_gradients() const;
  // Adds this rank's part of the reduced sum to the gradients of the parameters.
  void take_gradient(const Tensor& reduced);

 private:
  void check_unchanged(const std::string& unit) const;

  std::vector<ShardedMember> members_;
  const bool trained_;
  DType dtype_, computed_, reduced_;
  int rank_;
  std::shared_ptr<const Shard> shard_of_rank_;  // what the parameters say they are
  ShardLayout layout_;
  Tensor shard_, gathered_;
  std::uint64_t versions_ = 0;  // of the parts when they were gathered last
};

struct ShardedUnit {
  std::string name;  // path of its module
  ModuleBase* module = nullptr;
  std::vector<ShardedFlat> flats = {};
  std::uint64_t hooks = 0;
  bool gathered = false;
  Event arrived = {};  // what was gathered
  int depth = 0;       // calls in progress
  // Of the forward with that number: the wholes, in the order of flats and members, and the node that they come from.
  std::uint64_t forward = 0;
  std::vector<Tensor> wholes = {};
  bool recorded = false;    // there is such a node
  std::uint64_t begin = 0;  // its first node's number
  bool trains() const;

  std::string described() const { return name.empty() ? "the outermost unit" : cat("unit '", name, "'"); }
};

}  // namespace lockstep::detail
