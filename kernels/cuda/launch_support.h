// What the launching side of the kernels shares: grids, scratch memory, the way from a dtype to a type.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "lockstep/kernels/common/dispatch.h"
#include "lockstep/kernels/cuda/offsets.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::kernels::cuda {

// The elements of a view that may be absent: then null.
template <class T>
const T* or_null(const In& in) {
  return in.view.present ? data<T>(in) : nullptr;
}
template <class T>
T* or_null(const Out& out) {
  return out.view.present ? data<T>(out) : nullptr;
}

inline constexpr int kThreads = 256;  // of a block, where a kernel says nothing else

// Blocks on a multiprocessor, at least, of a kernel that holds many numbers; 0 leaves it to the compiler. In f64 that
// would rather have a third block, and some of the numbers on the stack.
template <class T>
inline constexpr int kLeastBlocks = std::is_same_v<T, double> ? 2 : 0;

struct Grid {
  dim3 blocks, threads{kThreads};
  std::size_t shared_bytes = 0;  // dynamic
};

// Blocks for a loop over `items` by the threads of the whole grid: as many as can be resident, at most one per item.
inline Grid grid_for(const Stream& stream, std::int64_t items, int threads = kThreads) {
  constexpr std::int64_t kResidentThreads = 2048;  // per multiprocessor
  const std::int64_t wanted = (items + threads - 1) / threads;
  const std::int64_t resident = properties(stream.device()).multiprocessors * (kResidentThreads / threads);
  return {dim3(static_cast<unsigned>(std::max<std::int64_t>(1, std::min(wanted, resident)))),
          dim3(static_cast<unsigned>(threads)), 0};
}

// Whether packs of `elements` can be moved from and to the view's memory, 16 bytes at a time at most.
inline bool aligned_for(const void* data, DType dtype, int elements) {
  const std::size_t bytes = size_of(dtype) * static_cast<std::size_t>(elements);
  return reinterpret_cast<std::uintptr_t>(data) % std::min<std::size_t>(bytes, 16) == 0;
}

// Device memory for the work that is enqueued on `stream` while this object lives.
class Scratch {
 public:
  explicit Scratch(const Stream& stream) : stream_(stream) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (int i = 0; i < count_; ++i) release(blocks_[i]);  // reused only by later work of the stream
  }
  // 256-byte aligned.
  template <class T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }
  void* take_bytes(std::size_t bytes) {
    LOCKSTEP_CHECK(count_ < kMost, "[kernels] expected at most ", kMost, " pieces of scratch memory");
    blocks_[count_] = allocate(stream_, bytes);
    return blocks_[count_++]->data;
  }

 private:
  static constexpr int kMost = 12;
  Stream stream_;
  MemoryBlock* blocks_[kMost];
  int count_ = 0;
};

// The kernels of a file, for prepare(): CUDA loads a kernel when it is first touched, which may wait for the device.
class KernelList {
 public:
  template <class... Parameters>
  void add(void (*kernel)(Parameters...)) {
    kernels_.push_back(reinterpret_cast<const void*>(kernel));
  }
  const std::vector<const void*>& all() const { return kernels_; }

 private:
  std::vector<const void*> kernels_;
};

// Calls `f(Type<T>{})` for every floating element type.
template <class F>
void for_floating(F&& f) {
  f(Type<float>{}), f(Type<double>{}), f(Type<Half>{}), f(Type<BFloat16>{});
}
template <class F>
void for_all(F&& f) {
  for_floating(f);
  f(Type<std::int32_t>{}), f(Type<std::int64_t>{}), f(Type<std::uint8_t>{}), f(Type<std::int8_t>{}), f(Type<bool>{});
}
// For operations that only move elements: an unsigned integer of the element's size.
template <class F>
void for_sizes(F&& f) {
  f(Type<std::uint8_t>{}), f(Type<std::uint16_t>{}), f(Type<std::uint32_t>{}), f(Type<std::uint64_t>{});
}
template <class F>
decltype(auto) dispatch_size(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(Type<std::uint8_t>{});
    case 2:
      return f(Type<std::uint16_t>{});
    case 4:
      return f(Type<std::uint32_t>{});
    default:
      return f(Type<std::uint64_t>{});
  }
}

}  // namespace lockstep::kernels::cuda
