// Affine maps whose weight is divided among the ranks of a communicator.
//
//   ColumnParallelLinear up(ranks, 512, 2048);   // [.., 512] -> this rank's [.., 2048 / p]
//   RowParallelLinear down(ranks, 2048, 512);    // -> [.., 512], the same on all ranks: one all-reduce
//
// They have the names of Linear, and its weights: whatever the number of ranks, all draw the numbers that rank 0 would
// draw for a Linear. While one is made, a rank has its whole weight, and afterwards its part alone. Parameters begin on
// cpu, and must be moved to the communicator's device. The communicator is borrowed: it must outlive the layer and its
// graphs. Constructors and calls are for all ranks, in the same order; they throw what rank_ops.h says.
#pragma once

#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/nn/shard.h"

namespace lockstep {

struct ColumnParallelOptions {
  bool bias = true;
  Activation activation = Activation::none;
  bool gather_output = false;  // the result is whole on every rank
  // The outputs are several matrices' side by side, of so many columns each, of which every rank has its share
  // (queries, keys and values; gate and up). Empty: one. Not with gather_output.
  std::vector<std::int64_t> sections = {};
};

// x [.., inputs], the same on all ranks -> this rank's outputs [.., outputs / p]. weight [outputs / p, inputs], bias
// [outputs / p]. InvalidArgument for outputs (or sections) that the ranks do not divide evenly.
class LOCKSTEP_API ColumnParallelLinear : public Module<ColumnParallelLinear> {
 public:
  ColumnParallelLinear(Communicator& ranks, std::int64_t inputs, std::int64_t outputs,
                       const ColumnParallelOptions& options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }

  Parameter weight, bias;

 private:
  Communicator* ranks_;
  Activation activation_;
  bool gather_output_;
};

struct RowParallelOptions {
  bool bias = true;
  bool split_input = false;  // x is whole on every rank
};

// x [.., inputs / p], this rank's -> [.., outputs], the sum over the ranks, and then the bias once. weight [outputs,
// inputs / p]; bias [outputs], whole and the same on all ranks. InvalidArgument for inputs that the ranks do not
// divide.
class LOCKSTEP_API RowParallelLinear : public Module<RowParallelLinear> {
 public:
  RowParallelLinear(Communicator& ranks, std::int64_t inputs, std::int64_t outputs,
                    const RowParallelOptions& options = {});
  Tensor forward(const Tensor& x) const;
  void members(Members& m) override { m("weight", weight), m("bias", bias); }

  Parameter weight, bias;

 private:
  Communicator* ranks_;
  bool split_input_;
};

// Of `ranks` along `dim`. InvalidArgument, "[what] expected …", for sections that the ranks do not divide evenly.
LOCKSTEP_API Shard even_shard(const char* what, const Communicator& ranks, int dim, std::vector<std::int64_t> sections);

}  // namespace lockstep
