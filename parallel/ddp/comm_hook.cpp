#include "lockstep/parallel/ddp/comm_hook.h"

#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {

void GradBucket::divide() const {
  LOCKSTEP_CHECK(!sparse(), "[GradBucket::divide] expected a bucket with a buffer, got rows of '", parameters()[0].name,
                 "'");
  const double factor = 1.0 / divisor();
  if (contents_->unrounded.defined()) {
    buffer().copy_(contents_->unrounded * factor);
  } else if (divisor() != 1) {
    buffer().mul_(factor);
  }
}

GradBucket GradBucket::with_buffer(const Tensor& buffer) const {
  LOCKSTEP_CHECK(!sparse(), "[GradBucket::with_buffer] expected a bucket with a buffer, got rows of '",
                 parameters()[0].name, "'");
  LOCKSTEP_CHECK(buffer.defined() && buffer.shape() == contents_->buffer.shape() &&
                     buffer.device() == contents_->buffer.device() && buffer.contiguous_layout(),
                 "[GradBucket::with_buffer] expected a contiguous tensor like ", contents_->buffer, ", got ", buffer);
  Contents contents = *contents_;
  contents.buffer = buffer;
  contents.unrounded = Tensor();
  const auto element_bytes = static_cast<std::ptrdiff_t>(size_of(contents_->buffer.dtype()));
  for (Tensor& gradient : contents.gradients) {
    if (gradient.count() == 0) continue;
    const std::ptrdiff_t begin =
        static_cast<const std::byte*>(gradient.data()) - static_cast<const std::byte*>(contents_->buffer.data());
    gradient = buffer.narrow(0, begin / element_bytes, gradient.count()).reshape(gradient.shape());
  }
  return GradBucket(std::move(contents));
}

GradBucket GradBucket::among(Communicator& communicator) const {
  Contents contents = *contents_;
  contents.communicator = &communicator;
  contents.divisor = communicator.size();
  contents.divisor_may_fall = false;
  return GradBucket(std::move(contents));
}

}  // namespace lockstep
