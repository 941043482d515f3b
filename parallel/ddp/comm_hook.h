// Communication hooks: what DistributedDataParallel does with a bucket of gradients instead of averaging it.
//
//   net.register_comm_hook({"average of signs", [](GradBucket& bucket) {
//     bucket.buffer().copy_(sign(bucket.buffer()) * (1.0 / bucket.divisor()));   // not RedOp::avg: see divisor()
//     bucket.communicator().all_reduce(bucket.buffer());
//     return Work();
//   }});
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/work.h"
#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/ops/sparse_gradient.h"

namespace lockstep {

// The gradients of several parameters, or the rows of one. Copies are handles on the same bucket: what a work does
// later takes one along.
class LOCKSTEP_API GradBucket {
 public:
  // What one is made of. `parameters` is not null; `gradients` are parts of `buffer`.
  struct Contents {
    std::size_t index = 0;
    bool is_last = false;
    std::shared_ptr<const std::vector<NamedParameter>> parameters;
    Tensor buffer;
    std::vector<Tensor> gradients;
    SparseGradient rows;
    Communicator* communicator = nullptr;
    int divisor = 1;
    bool divisor_may_fall = false;
    Tensor unrounded;  // what `buffer` was rounded from; undefined where it was not
    std::shared_ptr<const std::vector<bool>> lost;
  };
  explicit GradBucket(Contents contents) : contents_(std::make_shared<Contents>(std::move(contents))) {}

  // Buckets of an iteration come by their index, from 0, on every rank. Which parameters are in one changes once, when
  // buckets are rebuilt after the first iteration: state belongs to parameters, by name.
  std::size_t index() const { return contents_->index; }
  bool is_last() const { return contents_->is_last; }  // of this iteration
  std::span<const NamedParameter> parameters() const { return *contents_->parameters; }

  // All gradients one after another, [elements], contiguous, of the dtype in which they are reduced; undefined for
  // rows. Each begins at a multiple of 256 bytes; what lies between them is zero when the hook is called, and what it
  // leaves there does not matter. Not divided, and with DdpMixedPrecision rounded already. What it holds when the work
  // is complete is what the parameters get.
  Tensor buffer() const { return contents_->buffer; }
  // The buffer becomes the gradients divided by divisor(), and rounded after that: large ones may fit then. Before the
  // buffer is changed otherwise; on the current stream.
  void divide() const;
  // Those of parameters(): parts of the buffer, in their shapes.
  std::span<const Tensor> gradients() const { return contents_->gradients; }

  // Of a parameter with sparse gradients, which has a bucket by itself: this rank's rows, undefined where it has none.
  // The parameter gets what was set last.
  bool sparse() const { return !contents_->buffer.defined(); }
  const SparseGradient& rows() const { return contents_->rows; }
  void set_rows(SparseGradient rows) { contents_->rows = std::move(rows); }

  Communicator& communicator() const { return *contents_->communicator; }
  // Of a sum over the ranks, for their average. In a join it may be the number of ranks that still have inputs, and not
  // the size of the communicator, by which RedOp::avg divides.
  int divisor() const { return contents_->divisor; }
  // Whether it is that number: what a hook keeps of a rank for later may then come too late to be counted.
  bool divisor_may_fall() const { return contents_->divisor_may_fall; }

  // For hooks that remember, to be kept without the bucket: by parameter, whether no rank has used it, so that its
  // gradient stays what it was and what the hook made of it is lost. All false until the iteration is over. Null where
  // every parameter is used, or else an error.
  std::shared_ptr<const std::vector<bool>> lost() const { return contents_->lost; }

  // A bucket like this one whose elements are in `buffer`, which has as many, perhaps of another dtype: for a hook that
  // calls another.
  GradBucket with_buffer(const Tensor& buffer) const;
  // This bucket's buffer, among the ranks of another communicator. It has rows of its own.
  GradBucket among(Communicator& communicator) const;

 private:
  std::shared_ptr<Contents> contents_;
};

// Called once per bucket and iteration, in a thread of the backward, without gradient recording and with the reducer's
// communication stream current: what it enqueues runs while the backward goes on. It works in place, on the bucket. All
// ranks call it for the same buckets in the same order, so that it may use the communicator, and others that all ranks
// call in that order. What it, or the work it returns, throws is an Error of the backward, and a CommError on the other
// ranks. So is a work that is not complete within the communicator's timeout from the time on that it is waited for:
// after the backward, after the works of the buckets before it, and each work that is chained by itself.
struct CommHook {
  std::string name;  // for errors, and to know that all ranks have the same: with its options
  std::function<Work(GradBucket&)> call;
};

}  // namespace lockstep
