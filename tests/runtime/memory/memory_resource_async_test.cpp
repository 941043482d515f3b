// A memory resource of a device that works on its own: what is in flight when memory goes back.
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/memory/memory_resource.h"
#include "runtime/manual_backend.h"
#include "support/catch.h"

using namespace lockstep;

TEST_CASE("memory goes back to its resource when its own stream and all others are done with it") {
  constexpr std::size_t kBytes = 3 << 20;
  const Device device = Device::cuda(0);
  manual::ManualBackend& backend = manual::backend();
  backend.reset();
  empty_cache(device);
  bool own_done = false, other_done = false;
  int frees = 0, early = 0;
  set_memory_resource(device,
                      {.allocate = [&](Device on, std::size_t bytes) { return backend.allocate(on.index(), bytes); },
                       .free =
                           [&](Device on, void* memory, std::size_t) {
                             ++frees;
                             early += !own_done || !other_done;
                             backend.free(on.index(), memory);
                           }});
  Stream stream(device), user(Device::cuda(1));
  MemoryBlock *first = allocate(stream, kBytes), *second = allocate(stream, kBytes);
  stream.enqueue([&] { own_done = true; });
  backend.touch(stream.handle(), first->data);
  user.enqueue([&] { other_done = true; });
  backend.touch(user.handle(), second->data);
  record_use(second, user);
  release(first);
  release(second);
  CHECK_FALSE(own_done);
  SECTION("when the cache is emptied") { empty_cache(device); }
  SECTION("when the device is full") {
    MemoryBlock* const third = allocate(stream, 60 << 20);  // of 64
    CHECK(frees == 2);
    release(third);
  }
  CHECK(early == 0);
  CHECK(frees == 2);
  CHECK(backend.unsafe_frees == 0);
  set_memory_resource(device, {});
  empty_cache(device);
  backend.reset();
}

TEST_CASE("a flush that times out leaves a resource what it has out") {
  const Device device = Device::cuda(0);
  manual::ManualBackend& backend = manual::backend();
  backend.reset();
  empty_cache(device);
  int frees = 0;
  set_memory_resource(device,
                      {.allocate = [&](Device on, std::size_t bytes) { return backend.allocate(on.index(), bytes); },
                       .free =
                           [&](Device on, void* memory, std::size_t) {
                             ++frees;
                             backend.free(on.index(), memory);
                           }});
  Stream stream(device);
  MemoryBlock* block = allocate(stream, 3 << 20);
  backend.touch(stream.handle(), block->data);
  release(block);
  backend.waits_help = false;
  CHECK_THROWS_AS(empty_cache(device), TimeoutError);
  CHECK(frees == 0);
  backend.waits_help = true;
  empty_cache(device);
  CHECK(frees == 1);
  set_memory_resource(device, {});
  backend.reset();
}
