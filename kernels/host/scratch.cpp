#include "lockstep/kernels/host/scratch.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace lockstep::kernels::host {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmallest = std::size_t{1} << 18;
constexpr std::size_t kKept = std::size_t{1} << 28;  // more than this is returned to the system after the call

struct Free {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{kAlignment}); }
};
struct Block {
  std::unique_ptr<std::byte, Free> memory;
  std::size_t bytes = 0;
};
struct Pool {
  std::vector<Block> blocks;
  std::size_t block = 0;  // the one in use
  std::size_t used = 0;   // bytes of it
};
constinit thread_local Pool* pool_of_thread = nullptr;

Pool& calling_pool() {
  if (!pool_of_thread) [[unlikely]] {
    struct End {
      ~End() { delete std::exchange(pool_of_thread, nullptr); }
    };
    pool_of_thread = new Pool;
    // Statics may compute when they are destroyed, after this: they get a pool that stays.
    static thread_local End end;
  }
  return *pool_of_thread;
}

Block make_block(std::size_t bytes) {
  return {
      std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}))),
      bytes};
}

}  // namespace

Scratch::Scratch() : block_(calling_pool().block), used_(calling_pool().used) {}

Scratch::~Scratch() {
  Pool& pool = calling_pool();
  pool.block = block_;
  pool.used = used_;
  if (block_ > 0 || used_ > 0 || pool.blocks.size() < 2) {
    if (block_ == 0 && used_ == 0 && !pool.blocks.empty() && pool.blocks[0].bytes > kKept) pool.blocks.clear();
    return;
  }
  // The outermost scope ends and one block was not enough: the next call gets one that is.
  std::size_t bytes = 0;
  for (const Block& b : pool.blocks) bytes += b.bytes;
  pool.blocks.clear();
  if (bytes > kKept) return;
  try {
    pool.blocks.push_back(make_block(bytes));
  } catch (const std::bad_alloc&) {
    // The next call that needs memory says so.
  }
}

void* Scratch::take_bytes(std::size_t bytes) {
  Pool& pool = calling_pool();
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  while (pool.block < pool.blocks.size() && pool.blocks[pool.block].bytes - pool.used < bytes) {
    ++pool.block;
    pool.used = 0;
  }
  if (pool.block == pool.blocks.size()) pool.blocks.push_back(make_block(std::max(bytes, kSmallest)));
  std::byte* memory = pool.blocks[pool.block].memory.get() + pool.used;
  pool.used += bytes;
  return memory;
}

}  // namespace lockstep::kernels::host
