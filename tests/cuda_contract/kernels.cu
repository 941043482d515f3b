#include "cuda_contract/kernels.h"

namespace contract {
namespace {

__global__ void fill(int* memory, int value, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) memory[i] = value;
}

__global__ void static_shared(int* memory, int value) {
  __shared__ int held[10000];
  held[threadIdx.x * 7 % 10000] = value;
  __syncthreads();
  if (threadIdx.x == 0) memory[0] = held[0];
}

__global__ void __launch_bounds__(64) bounded(int* memory, int value) {
  if (threadIdx.x == 0) memory[0] = value;
}

__global__ void spin(long long nanoseconds) {
  long long begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < nanoseconds);
}

}  // namespace

void launch_fill(int* memory, int value, int count, Shape shape, cudaStream_t stream) {
  fill<<<shape.blocks, shape.threads, shape.shared_bytes, stream>>>(memory, value, count);
}
void launch_static_shared(int* memory, int value, Shape shape, cudaStream_t stream) {
  static_shared<<<shape.blocks, shape.threads, shape.shared_bytes, stream>>>(memory, value);
}
void launch_bounded(int* memory, int value, Shape shape, cudaStream_t stream) {
  bounded<<<shape.blocks, shape.threads, shape.shared_bytes, stream>>>(memory, value);
}
void launch_spin(long long nanoseconds, cudaStream_t stream) { spin<<<1, 1, 0, stream>>>(nanoseconds); }

const void* fill_function() { return reinterpret_cast<const void*>(fill); }
const void* static_shared_function() { return reinterpret_cast<const void*>(static_shared); }

}  // namespace contract
