// GPUs whose blocks have less shared memory than an H100's.
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

Tensor attend(std::int64_t head_size, bool with_gradients) {
  Tensor x = ones({1, 2, 16, head_size}, {.device = support::device_at(1)});
  x.set_requires_grad(with_gradients);
  return sum(scaled_dot_product_attention(x, x, x));
}

}  // namespace

// Alone in its program (ctest: fake_cuda/small_shared), whose GPUs have 99 KB, as an RTX 4090.
TEST_CASE("attention that needs more shared memory than the GPU has says so", "[.small_shared]") {
  using Catch::Matchers::Contains;
  CHECK_NOTHROW(attend(128, false));
  CHECK_NOTHROW(attend(64, true).backward());
  CHECK_THROWS_AS(attend(256, false), NotSupported);
  CHECK_THROWS_WITH(attend(256, false), Contains("[attention] expected a problem whose blocks need at most the 101376 "
                                                 "bytes of shared memory that cuda:"));
  const Tensor loss = attend(128, true);
  CHECK_THROWS_AS(loss.backward(), NotSupported);
}
