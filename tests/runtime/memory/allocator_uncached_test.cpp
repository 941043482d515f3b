// Says something where LOCKSTEP_CACHE=off is set: tests/CMakeLists.txt runs it that way too.
#include <cstdlib>
#include <string_view>

#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;

TEST_CASE("without a cache every block is a raw allocation of its own") {
  const char* set = std::getenv("LOCKSTEP_CACHE");
  const bool off = set && std::string_view(set) == "off";
  const Device device = device_at(1);
  Stream stream(device);
  empty_cache(device);
  const MemoryStats before = memory_stats(device);
  for (int i = 0; i < 3; ++i) {
    MemoryBlock* block = allocate(stream, 1000);
    CHECK(block->bytes >= 1000);
    if (off) CHECK(block->bytes == 1000);
    release(block);
  }
  const MemoryStats after = memory_stats(device);
  CHECK(after.raw_allocations - before.raw_allocations == (off ? 3u : 1u));
  CHECK(after.in_use_bytes == before.in_use_bytes);
  if (off) CHECK(after.raw_frees - before.raw_frees == 2);  // the last one goes with the next
  empty_cache(device);
}
