// Working memory of a kernel: from a pool of the calling thread, which keeps it for the next call. Nothing is allocated
// once a thread has seen its largest kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels::host {

class Scratch {
 public:
  Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();  // gives back what was taken through this object; scopes nest

  // Uninitialised, 64-byte aligned, valid until this object ends.
  template <class T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }

 private:
  void* take_bytes(std::size_t bytes);
  std::size_t block_, used_;  // where the pool stood
};

}  // namespace lockstep::kernels::host
