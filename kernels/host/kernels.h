// The list of the host backend's kernels.
#pragma once

#include "lockstep/kernels/table.h"

namespace lockstep::kernels::host {

// The kernels of the host backend. Each checks the dtypes in the calling thread, then runs in stream order. A kernel
// runs in one thread and its sums have one fixed order, so the same input gives the same bits.
struct Kernels {
  using Absent = ArgsList<>;

  static void run(Stream& stream, const UnaryArgs& args);
  static void run(Stream& stream, const BinaryArgs& args);
  static void run(Stream& stream, const WhereArgs& args);
  static void run(Stream& stream, const CastArgs& args);
  static void run(Stream& stream, const FillArgs& args);
  static void run(Stream& stream, const ArangeArgs& args);
  static void run(Stream& stream, const ReduceArgs& args);
  static void run(Stream& stream, const ArgReduceArgs& args);
  static void run(Stream& stream, const MatmulArgs& args);
  static void run(Stream& stream, const Conv2dArgs& args);
  static void run(Stream& stream, const Conv2dGradInputArgs& args);
  static void run(Stream& stream, const Conv2dGradWeightArgs& args);
  static void run(Stream& stream, const MaxPool2dArgs& args);
  static void run(Stream& stream, const MaxUnpool2dArgs& args);
  static void run(Stream& stream, const AvgPool2dArgs& args);
  static void run(Stream& stream, const AvgPool2dGradArgs& args);
  static void run(Stream& stream, const BatchNormArgs& args);
  static void run(Stream& stream, const BatchNormGradArgs& args);
  static void run(Stream& stream, const SoftmaxArgs& args);
  static void run(Stream& stream, const SoftmaxGradArgs& args);
  static void run(Stream& stream, const GroupNormArgs& args);
  static void run(Stream& stream, const GroupNormGradArgs& args);
  static void run(Stream& stream, const Resample2dArgs& args);
  static void run(Stream& stream, const CrossEntropyArgs& args);
  static void run(Stream& stream, const CrossEntropyGradArgs& args);
  static void run(Stream& stream, const CumsumArgs& args);
  static void run(Stream& stream, const ArgsortArgs& args);
  static void run(Stream& stream, const AttentionArgs& args);
  static void run(Stream& stream, const AttentionGradArgs& args);
  static void run(Stream& stream, const LstmCellArgs& args);
  static void run(Stream& stream, const LstmCellGradArgs& args);
  static void run(Stream& stream, const GruCellArgs& args);
  static void run(Stream& stream, const GruCellGradArgs& args);
  static void run(Stream& stream, const GatherArgs& args);
  static void run(Stream& stream, const ScatterAddArgs& args);
  static void run(Stream& stream, const IndexSelectArgs& args);
  static void run(Stream& stream, const IndexAddArgs& args);
  static void run(Stream& stream, const RandomArgs& args);
  static void run(Stream& stream, const SgdArgs& args);
  static void run(Stream& stream, const AdamArgs& args);
  static void run(Stream& stream, const UnscaleArgs& args);
};

}  // namespace lockstep::kernels::host
