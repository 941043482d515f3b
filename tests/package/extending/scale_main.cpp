// Runs the kernel of docs/extending.md on every device that there is.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

void scale(const Tensor& x, float factor);
#ifdef WITHOUT_CUDA
void scale_on_gpu(int, void*, float*, std::int64_t, float) { throw NotSupported("a build without CUDA"); }
#endif

int main() {
  for (const Device device : all_devices()) {
    Tensor x = arange(5, {.dtype = DType::f32, .device = device});
    scale(x, 3);
    if (x.to_vector<float>() != std::vector<float>{0, 3, 6, 9, 12}) {
      std::fprintf(stderr, "wrong on %s\n", to_string(device).c_str());
      return 1;
    }
  }
}
