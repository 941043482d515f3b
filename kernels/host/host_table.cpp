#include "lockstep/kernels/host/host_table.h"

namespace lockstep::kernels::host {

const KernelTable& host_table() {
  static constexpr KernelTable kTable{
      .unary = unary,
      .binary = binary,
      .where = where,
      .cast = cast,
      .fill = fill,
      .arange = arange,
      .reduce = reduce,
      .arg_reduce = arg_reduce,
      .matmul = matmul,
      .conv2d = conv2d,
      .conv2d_grad_input = conv2d_grad_input,
      .conv2d_grad_weight = conv2d_grad_weight,
      .max_pool2d = max_pool2d,
      .max_unpool2d = max_unpool2d,
      .avg_pool2d = avg_pool2d,
      .avg_pool2d_grad = avg_pool2d_grad,
      .batch_norm = batch_norm,
      .batch_norm_grad = batch_norm_grad,
      .softmax = softmax,
      .softmax_grad = softmax_grad,
      .group_norm = group_norm,
      .group_norm_grad = group_norm_grad,
      .resample2d = resample2d,
      .cross_entropy = cross_entropy,
      .cross_entropy_grad = cross_entropy_grad,
      .cumsum = cumsum,
      .argsort = argsort,
      .attention = attention,
      .attention_grad = attention_grad,
      .lstm_cell = lstm_cell,
      .lstm_cell_grad = lstm_cell_grad,
      .gru_cell = gru_cell,
      .gru_cell_grad = gru_cell_grad,
      .gather = gather,
      .scatter_add = scatter_add,
      .index_select = index_select,
      .index_add = index_add,
      .random = random,
      .sgd = sgd,
      .adam = adam,
      .unscale = unscale,
  };
  return kTable;
}

}  // namespace lockstep::kernels::host
