// The kernels of the host backend.
#pragma once

#include "lockstep/kernels/table.h"

namespace lockstep::kernels::host {

const KernelTable& host_table();

// One function per table entry. Each checks the dtypes in the calling thread, then runs in stream order. A kernel runs
// in one thread and its sums have one fixed order, so the same input gives the same bits.
void unary(Stream& stream, const UnaryArgs& args);
void binary(Stream& stream, const BinaryArgs& args);
void where(Stream& stream, const WhereArgs& args);
void cast(Stream& stream, const CastArgs& args);
void fill(Stream& stream, const FillArgs& args);
void arange(Stream& stream, const ArangeArgs& args);
void reduce(Stream& stream, const ReduceArgs& args);
void arg_reduce(Stream& stream, const ArgReduceArgs& args);
void matmul(Stream& stream, const MatmulArgs& args);
void conv2d(Stream& stream, const Conv2dArgs& args);
void conv2d_grad_input(Stream& stream, const Conv2dGradInputArgs& args);
void conv2d_grad_weight(Stream& stream, const Conv2dGradWeightArgs& args);
void max_pool2d(Stream& stream, const MaxPool2dArgs& args);
void max_unpool2d(Stream& stream, const MaxUnpool2dArgs& args);
void avg_pool2d(Stream& stream, const AvgPool2dArgs& args);
void avg_pool2d_grad(Stream& stream, const AvgPool2dGradArgs& args);
void batch_norm(Stream& stream, const BatchNormArgs& args);
void batch_norm_grad(Stream& stream, const BatchNormGradArgs& args);
void softmax(Stream& stream, const SoftmaxArgs& args);
void softmax_grad(Stream& stream, const SoftmaxGradArgs& args);
void group_norm(Stream& stream, const GroupNormArgs& args);
void group_norm_grad(Stream& stream, const GroupNormGradArgs& args);
void resample2d(Stream& stream, const Resample2dArgs& args);
void cross_entropy(Stream& stream, const CrossEntropyArgs& args);
void cross_entropy_grad(Stream& stream, const CrossEntropyGradArgs& args);
void cumsum(Stream& stream, const CumsumArgs& args);
void argsort(Stream& stream, const ArgsortArgs& args);
void attention(Stream& stream, const AttentionArgs& args);
void attention_grad(Stream& stream, const AttentionGradArgs& args);
void lstm_cell(Stream& stream, const LstmCellArgs& args);
void lstm_cell_grad(Stream& stream, const LstmCellGradArgs& args);
void gru_cell(Stream& stream, const GruCellArgs& args);
void gru_cell_grad(Stream& stream, const GruCellGradArgs& args);
void gather(Stream& stream, const GatherArgs& args);
void scatter_add(Stream& stream, const ScatterAddArgs& args);
void index_select(Stream& stream, const IndexSelectArgs& args);
void index_add(Stream& stream, const IndexAddArgs& args);
void random(Stream& stream, const RandomArgs& args);
void sgd(Stream& stream, const SgdArgs& args);
void adam(Stream& stream, const AdamArgs& args);
void unscale(Stream& stream, const UnscaleArgs& args);

}  // namespace lockstep::kernels::host
