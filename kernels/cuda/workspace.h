// Scratch memory of a library's call.
#pragma once

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::kernels::cuda {

// Of one stream: calls on two streams of the device may run at the same time.
class Workspace {
 public:
  Workspace(const Stream& stream, std::size_t bytes) : block_(bytes > 0 ? allocate(stream, bytes) : nullptr) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (block_) release(block_);  // reused only by later work of the stream
  }
  void* data() const { return block_ ? block_->data : nullptr; }

 private:
  MemoryBlock* block_;
};

}  // namespace lockstep::kernels::cuda
