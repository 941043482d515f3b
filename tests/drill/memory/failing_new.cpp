#include "failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace memory_drill {
namespace {

constinit std::atomic<std::int64_t> countdown{0};  // 0: nothing fails
constinit std::atomic<bool> stays{false}, struck{false};
constinit std::atomic<std::int64_t> asked_calls{0}, asked_bytes{0};

bool fails() noexcept {
  std::int64_t left = countdown.load(std::memory_order_relaxed);
  while (left > 0) {
    const std::int64_t next = left == 1 && stays.load(std::memory_order_relaxed) ? 1 : left - 1;
    if (countdown.compare_exchange_weak(left, next, std::memory_order_relaxed)) {
      if (left == 1) struck.store(true, std::memory_order_relaxed);
      return left == 1;
    }
  }
  return false;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  asked_calls.fetch_add(1, std::memory_order_relaxed);
  asked_bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  if (fails()) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t))
    memory = std::malloc(bytes ? bytes : 1);
  else if (posix_memalign(&memory, alignment, bytes ? bytes : 1) != 0)
    memory = nullptr;
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* memory = allocate(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void arm(std::int64_t k, bool lasting) {
  struck = false;
  stays = lasting;
  countdown = k;
}

bool disarm() {
  countdown = 0;
  return struck;
}

Asked asked() { return {asked_calls.load(std::memory_order_relaxed), asked_bytes.load(std::memory_order_relaxed)}; }

}  // namespace memory_drill

// NOLINTBEGIN: what the standard lets a program replace
void* operator new(std::size_t bytes) { return memory_drill::allocate_or_throw(bytes, 1); }
void* operator new[](std::size_t bytes) { return memory_drill::allocate_or_throw(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t at) {
  return memory_drill::allocate_or_throw(bytes, static_cast<std::size_t>(at));
}
void* operator new[](std::size_t bytes, std::align_val_t at) {
  return memory_drill::allocate_or_throw(bytes, static_cast<std::size_t>(at));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return memory_drill::allocate(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return memory_drill::allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t at, const std::nothrow_t&) noexcept {
  return memory_drill::allocate(bytes, static_cast<std::size_t>(at));
}
void* operator new[](std::size_t bytes, std::align_val_t at, const std::nothrow_t&) noexcept {
  return memory_drill::allocate(bytes, static_cast<std::size_t>(at));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
// NOLINTEND
