#include "lockstep/parallel/tensor_parallel/rank_ops.h"

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// One operation and its adjoint, which is another of the four.
template <Tensor (*Adjoint)(const Tensor&, Communicator&)>
struct RankNode final : NodeOf<1> {
  const char* name() const override { return operation; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    grad_inputs[0] = Adjoint(grad_outputs[0], *ranks);
  }
  const char* operation = nullptr;
  Communicator* ranks = nullptr;
};

template <Tensor (*Adjoint)(const Tensor&, Communicator&)>
Tensor recorded(const char* operation, const Tensor& output, const Tensor& x, Communicator& ranks) {
  if (auto* node = record<RankNode<Adjoint>>(output, x)) node->operation = operation, node->ranks = &ranks;
  return output;
}

void check(const char* operation, const Tensor& x, const Communicator& ranks, int least_rank) {
  detail::check_defined(operation, x);
  LOCKSTEP_CHECK(x.device() == ranks.device(), "[", operation, "] expected a tensor on ", ranks.device(),
                 ", where the communicator works, got ", x);
  LOCKSTEP_CHECK(x.rank() >= least_rank, "[", operation, "] expected at least ", least_rank, " dimension, got ", x);
}

Shape with_last(Shape shape, std::int64_t size) {
  shape[shape.rank() - 1] = size;
  return shape;
}

}  // namespace

Tensor copy_to_ranks(const Tensor& x, Communicator& ranks) {
  constexpr const char* kName = "copy_to_ranks";
  if (ranks.size() == 1) return x;
  check(kName, x, ranks, 0);
  return recorded<sum_over_ranks>(kName, x.detach(), x, ranks);
}

Tensor sum_over_ranks(const Tensor& x, Communicator& ranks) {
  constexpr const char* kName = "sum_over_ranks";
  if (ranks.size() == 1) return x;
  check(kName, x, ranks, 0);
  const Tensor sum = detail::fresh(x.shape(), x.dtype(), x.device());
  {
    const NoGrad no_grad;
    ranks.all_reduce(x.detach().contiguous(), sum);
  }
  return recorded<copy_to_ranks>(kName, sum, x, ranks);
}

Tensor split_to_ranks(const Tensor& x, Communicator& ranks) {
  constexpr const char* kName = "split_to_ranks";
  if (ranks.size() == 1) return x;
  check(kName, x, ranks, 1);
  const std::int64_t size = x.size(-1), count = ranks.size();
  LOCKSTEP_CHECK(size % count == 0, "[", kName, "] expected a last dimension that ", count,
                 " ranks divide evenly, got ", x);
  const Tensor part = x.detach().narrow(-1, ranks.rank() * (size / count), size / count);
  return recorded<gather_from_ranks>(kName, part, x, ranks);
}

Tensor gather_from_ranks(const Tensor& x, Communicator& ranks) {
  constexpr const char* kName = "gather_from_ranks";
  if (ranks.size() == 1) return x;
  check(kName, x, ranks, 1);
  const std::int64_t size = x.size(-1), count = ranks.size(), rows = size > 0 ? x.count() / size : 0;
  const Tensor parts = detail::fresh({count, rows, size}, x.dtype(), x.device());
  Tensor whole;
  {
    const NoGrad no_grad;
    ranks.all_gather(x.detach().contiguous(), parts);
    whole = parts.transpose(0, 1).reshape(with_last(x.shape(), size * count));
  }
  return recorded<split_to_ranks>(kName, whole, x, ranks);
}

}  // namespace lockstep
