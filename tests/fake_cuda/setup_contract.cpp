// What uses the CUDA API alone gives back everything.
#include "fake_cuda/fake_cuda.h"

namespace {

const bool configured = (fake_cuda::keep_at_end([] { return fake_cuda::Alive{}; }), true);

}  // namespace
