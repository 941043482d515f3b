// The list of the CUDA backend's kernels.
#pragma once

#include "lockstep/kernels/table.h"

namespace lockstep::kernels::cuda {

// The kernels of the CUDA backend. Each checks the dtypes in the calling thread and enqueues; none waits. Sums have an
// order that the shapes and the number of multiprocessors fix, so the same input gives the same bits.
struct Kernels {
  using Absent = ArgsList<QuantizedMatmulArgs>;  // made of a dequantised weight and a product

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
  static void enqueue(const Stream& stream, const DequantizeArgs& args);
};

// Creates what kernels on the device will ever need: the BLAS handle and its workspace, and every kernel loaded.
void prepare(Device device);

// Part of UnaryArgs, in the file of casts: its result is a boolean.
void logical_not(const Stream& stream, const UnaryArgs& args);

// The kernels of each file, for prepare().
class KernelList;
using ListKernels = void(KernelList& list);
ListKernels list_unary, list_binary, list_copy, list_cast, list_reduce, list_batch_norm, list_softmax, list_group_norm,
    list_rms_norm, list_resample, list_cross_entropy, list_cumsum, list_argsort, list_attention, list_attention_grad,
    list_attention_products, list_attention_products_grad, list_attention_few, list_cells, list_pool, list_index,
    list_cub, list_random, list_optimizer, list_adam, list_ordered_sum, list_dequantize, list_matmul, list_conv,
    list_depthwise;
inline constexpr ListKernels* kAllLists[] = {list_unary,
                                             list_binary,
                                             list_copy,
                                             list_cast,
                                             list_reduce,
                                             list_batch_norm,
                                             list_softmax,
                                             list_group_norm,
                                             list_rms_norm,
                                             list_resample,
                                             list_cross_entropy,
                                             list_cumsum,
                                             list_argsort,
                                             list_attention,
                                             list_attention_grad,
                                             list_attention_products,
                                             list_attention_products_grad,
                                             list_attention_few,
                                             list_cells,
                                             list_pool,
                                             list_index,
                                             list_cub,
                                             list_random,
                                             list_optimizer,
                                             list_adam,
                                             list_ordered_sum,
                                             list_dequantize,
                                             list_matmul,
                                             list_conv,
                                             list_depthwise};

}  // namespace lockstep::kernels::cuda
