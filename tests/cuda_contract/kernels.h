// Kernels for tests of the CUDA runtime's rules.
#pragma once

#include <cuda_runtime_api.h>

namespace contract {

struct Shape {
  unsigned blocks = 1, threads = 1;
  std::size_t shared_bytes = 0;  // dynamic
};

// memory[i] = value for the first `count` elements.
void launch_fill(int* memory, int value, int count, Shape shape, cudaStream_t stream);
// The same, with 40 000 bytes of static shared memory in use.
void launch_static_shared(int* memory, int value, Shape shape, cudaStream_t stream);
// At most 64 threads in a block.
void launch_bounded(int* memory, int value, Shape shape, cudaStream_t stream);
// Spins for about `nanoseconds`.
void launch_spin(long long nanoseconds, cudaStream_t stream);

const void* fill_function();
const void* static_shared_function();

}  // namespace contract
