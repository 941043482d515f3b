#include "lockstep/parallel/ddp/overflow.h"

#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

std::function<bool(bool)> overflow_on_any_rank(Communicator& communicator) {
  return [&communicator](bool found) {
    const NoGrad no_grad;
    const Tensor any = tensor(found ? 1.0 : 0.0, {.dtype = DType::f32}).to(communicator.device());
    communicator.all_reduce(any, RedOp::max);
    return any.item<float>() != 0;
  };
}

}  // namespace lockstep
