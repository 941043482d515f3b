// The list of the host backend's kernels.
#pragma once

#include "lockstep/kernels/table.h"

namespace lockstep::kernels::host {

// The kernels of the host backend. Each checks the dtypes in the calling thread, then runs in stream order. A kernel is
// divided among threads into pieces that its shapes decide, and its sums have one fixed order: the same input gives the
// same bits, for any number of threads.
struct Kernels {
  using Absent = ArgsList<>;

  static void enqueue(const Stream& stream, const UnaryArgs& args);
  static void enqueue(const Stream& stream, const BinaryArgs& args);
  static void enqueue(const Stream& stream, const WhereArgs& args);
  static void enqueue(const Stream& stream, const CastArgs& args);
  static void enqueue(const Stream& stream, const FillArgs& args);
  static void enqueue(const Stream& stream, const ArangeArgs& args);
  static void enqueue(const Stream& stream, const ReduceArgs& args);
  static void enqueue(const Stream& stream, const ArgReduceArgs& args);
  static void enqueue(const Stream& stream, const MatmulArgs& args);
  static void enqueue(const Stream& stream, const Conv2dArgs& args);
  static void enqueue(const Stream& stream, const Conv2dGradInputArgs& args);
  static void enqueue(const Stream& stream, const Conv2dGradWeightArgs& args);
  static void enqueue(const Stream& stream, const MaxPool2dArgs& args);
  static void enqueue(const Stream& stream, const MaxUnpool2dArgs& args);
  static void enqueue(const Stream& stream, const AvgPool2dArgs& args);
  static void enqueue(const Stream& stream, const AvgPool2dGradArgs& args);
  static void enqueue(const Stream& stream, const BatchNormArgs& args);
  static void enqueue(const Stream& stream, const BatchNormGradArgs& args);
  static void enqueue(const Stream& stream, const SoftmaxArgs& args);
  static void enqueue(const Stream& stream, const SoftmaxGradArgs& args);
  static void enqueue(const Stream& stream, const GroupNormArgs& args);
  static void enqueue(const Stream& stream, const GroupNormGradArgs& args);
  static void enqueue(const Stream& stream, const RmsNormArgs& args);
  static void enqueue(const Stream& stream, const RmsNormGradArgs& args);
  static void enqueue(const Stream& stream, const Resample2dArgs& args);
  static void enqueue(const Stream& stream, const CrossEntropyArgs& args);
  static void enqueue(const Stream& stream, const CrossEntropyGradArgs& args);
  static void enqueue(const Stream& stream, const CumsumArgs& args);
  static void enqueue(const Stream& stream, const ArgsortArgs& args);
  static void enqueue(const Stream& stream, const AttentionArgs& args);
  static void enqueue(const Stream& stream, const AttentionGradArgs& args);
  static void enqueue(const Stream& stream, const LstmCellArgs& args);
  static void enqueue(const Stream& stream, const LstmCellGradArgs& args);
  static void enqueue(const Stream& stream, const GruCellArgs& args);
  static void enqueue(const Stream& stream, const GruCellGradArgs& args);
  static void enqueue(const Stream& stream, const GatherArgs& args);
  static void enqueue(const Stream& stream, const ScatterAddArgs& args);
  static void enqueue(const Stream& stream, const IndexSelectArgs& args);
  static void enqueue(const Stream& stream, const IndexAddArgs& args);
  static void enqueue(const Stream& stream, const RandomArgs& args);
  static void enqueue(const Stream& stream, const SgdArgs& args);
  static void enqueue(const Stream& stream, const AdamArgs& args);
  static void enqueue(const Stream& stream, const UnscaleArgs& args);
  static void enqueue(const Stream& stream, const CopyManyArgs& args);
  static void enqueue(const Stream& stream, const OrderedSumArgs& args);
  static void enqueue(const Stream& stream, const QuantizedMatmulArgs& args);
  static void enqueue(const Stream& stream, const DequantizeArgs& args);
};

// The tables that there are: of the kernels as the whole library is compiled, and with those for AVX-512 (x86-64-v4) in
// their places, where the build has them. kernel_table() is the one of host_instruction_set().
const KernelTable& baseline_table();
const KernelTable& avx512_table();

}  // namespace lockstep::kernels::host
