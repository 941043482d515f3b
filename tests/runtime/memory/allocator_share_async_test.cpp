// Blocks that are cut and joined on devices that work on their own: here memory may be shared too early.
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/memory/memory_sharing.h"
#include "runtime/manual_backend.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

constexpr std::size_t mib(std::size_t count) { return count << 20; }

// The first manual device with a limit of 10 MiB, and 8 MiB of them cached in the order of a stream that has not done
// its work with them.
class FullDevice {
 public:
  FullDevice() {
    clear();
    set_memory_limit(device, mib(10));
    set_memory_sharing(device, 0);
    MemoryBlock* const block = allocate(stream, mib(8));
    data = block->data;
    backend.touch(stream.handle(), data);
    stream.enqueue([this] { is_done = true; });
    release(block);
    backend.host_waits = 0;
  }
  ~FullDevice() {
    backend.reset();
    clear();
  }

  const Device device = Device::cuda(0);
  manual::ManualBackend& backend = manual::backend();
  Stream stream{device}, other{device};
  void* data = nullptr;
  bool is_done = false;

 private:
  void clear() {
    backend.reset();
    set_memory_limit(device, 0);
    set_memory_sharing(device, 2);
    empty_cache(device);
    backend.reset();
  }
};

}  // namespace

TEST_CASE("a stream cuts and joins its own blocks without a wait") {
  FullDevice full;
  MemoryBlock* first = allocate(full.stream, mib(5));
  MemoryBlock* second = allocate(full.stream, mib(3));
  CHECK(first->data == full.data);
  release(first);
  release(second);
  MemoryBlock* whole = allocate(full.stream, mib(8));
  CHECK(whole->data == full.data);
  CHECK(full.backend.host_waits == 0);
  CHECK_FALSE(full.is_done);
  release(whole);
}

TEST_CASE("what is free in another stream's order is cut once that stream is done with it") {
  FullDevice full;
  const std::uint64_t frees = memory_stats(full.device).raw_frees;
  MemoryBlock* block = allocate(full.other, mib(5));
  CHECK(full.is_done);
  CHECK(block->data == full.data);
  CHECK(memory_stats(full.device).raw_frees == frees);
  // The rest is anybody's.
  const int waits = full.backend.host_waits;
  MemoryBlock* rest = allocate(full.stream, mib(3));
  CHECK(rest->data == static_cast<std::byte*>(full.data) + mib(5));
  CHECK(full.backend.host_waits == waits);
  // Each part is in the order of who had it last.
  bool other_is_done = false;
  full.other.enqueue([&] { other_is_done = true; });
  release(block);
  release(rest);
  MemoryBlock* whole = allocate(full.stream, mib(8));
  CHECK(other_is_done);
  CHECK(whole->data == full.data);
  CHECK(memory_stats(full.device).raw_frees == frees);
  release(whole);
}

TEST_CASE("a part that another stream still uses joins when it does not any more") {
  FullDevice full;
  MemoryBlock* first = allocate(full.stream, mib(5));
  MemoryBlock* second = allocate(full.stream, mib(3));
  bool used = false;
  full.backend.touch(full.other.handle(), second->data);
  full.other.enqueue([&] { used = true; });
  record_use(second, full.other);
  release(first);
  release(second);
  CHECK_FALSE(used);
  MemoryBlock* whole = allocate(full.stream, mib(8));
  CHECK(used);
  CHECK(full.backend.host_waits > 0);
  CHECK(whole->data == full.data);
  release(whole);
  CHECK(full.backend.unsafe_frees == 0);
}

TEST_CASE("a wait that times out leaves the parts where they were") {
  FullDevice full;
  MemoryBlock* first = allocate(full.stream, mib(5));
  release(first);
  full.backend.waits_help = false;
  CHECK_THROWS_AS(allocate(full.other, mib(4)), TimeoutError);
  CHECK_THROWS_AS(empty_cache(full.device), TimeoutError);
  full.backend.waits_help = true;
  const int waits = full.backend.host_waits;
  MemoryBlock* again = allocate(full.stream, mib(8));
  CHECK(again->data == full.data);
  CHECK(full.backend.host_waits == waits);
  release(again);
}
