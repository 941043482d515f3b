// The caching allocator where there is no new memory: blocks are cut and joined.
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/memory/memory_resource.h"
#include "lockstep/runtime/memory/memory_sharing.h"
#include "lockstep/runtime/size_classes.h"
#include "runtime/memory/fresh_device.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using runtime_test::FreshDevice;
using support::device_at;

namespace {

constexpr std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
constexpr std::size_t operator""_MiB(unsigned long long count) { return count << 20; }

void* place(const MemoryBlock* block, std::size_t offset) { return static_cast<std::byte*>(block->data) + offset; }

// However much of it is in use.
class SharingDevice : public FreshDevice {
 public:
  explicit SharingDevice(Device device) : FreshDevice(device), device_(device) { set_memory_sharing(device, 0); }
  ~SharingDevice() { set_memory_sharing(device_, 2); }

 private:
  Device device_;
};

void release_all(std::initializer_list<MemoryBlock*> blocks) {
  for (MemoryBlock* block : blocks) release(block);
}

// Steps with tensors of 10 MB at most, at random scales: what the last 40 of 200 ask the device for.
std::uint64_t late_raw_allocations(Device device) {
  const Stream stream = default_stream(device);
  std::mt19937 random(5);
  std::uint64_t before = 0;
  for (int step = 0; step < 200; ++step) {
    if (step == 160) before = memory_stats(device).raw_allocations;
    const std::size_t scale = 50 + random() % 51;
    std::vector<MemoryBlock*> held;
    for (const std::size_t kib : {750, 1500, 3000, 800, 1250, 900}) {
      held.push_back(allocate(stream, kib * 1024 * scale / 100));
      release(allocate(stream, kib * 512 * scale / 100));
    }
    for (MemoryBlock* block : held) release(block);
  }
  return memory_stats(device).raw_allocations - before;
}

}  // namespace

TEST_CASE("at the limit a larger free block is cut, and its parts join again") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 10_MiB);
  MemoryBlock* whole = allocate(stream, 8_MiB);
  void* const data = whole->data;
  release(whole);
  for (int round = 0; round < 3; ++round) {
    MemoryBlock* first = allocate(stream, 5_MiB);
    MemoryBlock* second = allocate(stream, 3_MiB);
    CHECK(first->data == data);
    CHECK(second->data == place(first, 5_MiB));
    CHECK(first->bytes == 5_MiB);
    CHECK(second->bytes == 3_MiB);
    CHECK(memory_stats(device).in_use_bytes == 8_MiB);
    CHECK(memory_stats(device).cached_bytes == 0);
    CHECK_THROWS_AS(allocate(stream, 3_MiB), OutOfMemory);
    release(round == 1 ? second : first);
    CHECK_THROWS_AS(allocate(stream, 8_MiB), OutOfMemory);
    release(round == 1 ? first : second);
    whole = allocate(stream, 8_MiB);
    CHECK(whole->data == data);
    CHECK(whole->bytes == 8_MiB);
    release(whole);
  }
  CHECK(fresh.raw_allocations() == 1);
  CHECK(fresh.raw_frees() == 0);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 1);
  CHECK(memory_stats(device).cached_bytes == 0);
}

TEST_CASE("while there is new memory each class keeps its own") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 20_MiB);
  release(allocate(stream, 8_MiB));
  MemoryBlock* smaller = allocate(stream, 5_MiB);
  CHECK(fresh.raw_allocations() == 2);
  CHECK_THROWS_AS(allocate(stream, 30_MiB), OutOfMemory);  // which says nothing of what others ask for
  CHECK(fresh.raw_frees() == 1);
  release(allocate(stream, 8_MiB));
  MemoryBlock* other = allocate(stream, 6_MiB);
  CHECK(fresh.raw_allocations() == 4);
  set_memory_limit(device, 12_MiB);
  MemoryBlock* cut = allocate(stream, 4_MiB);  // of the 8 MiB
  CHECK(fresh.raw_allocations() == 4);
  set_memory_limit(device, 40_MiB);
  MemoryBlock* raw = allocate(stream, 3_MiB);  // though 4 MiB are left of them
  CHECK(fresh.raw_allocations() == 5);
  CHECK(raw->segment != cut->segment);
  release_all({smaller, other, cut, raw});
}

TEST_CASE("a device that has got memory back is not full") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 13_MiB);
  release(allocate(stream, 8_MiB));
  MemoryBlock* goes = allocate(stream, 4_MiB);
  MemoryBlock* cut = allocate(stream, 5_MiB);  // of the 8 MiB
  CHECK(fresh.raw_allocations() == 2);
  release(goes);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 1);
  MemoryBlock* raw = allocate(stream, 2560_KiB);  // though 3 MiB are left of the 8
  CHECK(fresh.raw_allocations() == 3);
  CHECK(raw->segment != cut->segment);
  release_all({cut, raw});
}

TEST_CASE("what a full device gave once it is asked for again") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 9_MiB);
  MemoryBlock* first = allocate(stream, 8_MiB);
  release(first);
  first = allocate(stream, 4_MiB);                // the device is full: cut
  MemoryBlock* second = allocate(stream, 1_MiB);  // cut too
  MemoryBlock* third = allocate(stream, 3_MiB);
  CHECK(fresh.raw_allocations() == 1);
  MemoryBlock* fourth = allocate(stream, 1_MiB);  // nothing is left, so the device is asked, and gives
  CHECK(fresh.raw_allocations() == 2);
  CHECK(fourth->segment != first->segment);
  CHECK(fresh.raw_frees() == 0);
  release_all({first, second, third, fourth});
}

TEST_CASE("small blocks do not take large segments apart while there is another way") {
  const Device device = device_at(2);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 8_MiB);
  release(allocate(stream, 8_MiB));
  MemoryBlock* small = allocate(stream, 1000);
  CHECK(fresh.raw_frees() == 1);  // the 8 MiB made room for a segment
  MemoryBlock* large = allocate(stream, 6_MiB);
  CHECK(fresh.raw_allocations() == 3);
  release_all({small, large});
  empty_cache(device);

  release(allocate(stream, 8_MiB));
  large = allocate(stream, 5_MiB);
  small = allocate(stream, 1000);  // of the 3 MiB that are left
  CHECK(small->segment == large->segment);
  CHECK(small->bytes >= 1000);
  MemoryBlock* rest = allocate(stream, 2_MiB + 512_KiB);
  CHECK(rest->segment == large->segment);
  release_all({large, small, rest});
  CHECK(memory_stats(device).in_use_bytes == 0);
  MemoryBlock* whole = allocate(stream, 8_MiB);
  CHECK(whole->bytes == 8_MiB);
  release(whole);
}

TEST_CASE("a rest that serves nobody stays with its block") {
  const Device device = device_at(2);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 4_MiB);
  release(allocate(stream, 4_MiB));
  MemoryBlock* block = allocate(stream, 3_MiB + 512_KiB);
  MemoryBlock* rest = allocate(stream, 320_KiB);  // of the 512 KiB that are left, whose rest is too small
  CHECK(detail::class_bytes(rest->bin) == 512_KiB);
  CHECK(memory_stats(device).in_use_bytes == 4_MiB);
  CHECK(memory_stats(device).cached_bytes == 0);
  release_all({block, rest});
  CHECK(memory_stats(device).in_use_bytes == 0);
  block = allocate(stream, 4_MiB);
  CHECK(fresh.raw_allocations() == 1);
  release(block);
}

TEST_CASE("free neighbours in a segment of small blocks join, the shortest row first") {
  const Device device = device_at(2);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  set_memory_limit(device, 2_MiB);
  std::vector<MemoryBlock*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocate(stream, 256_KiB));
  void* const data = blocks[0]->data;
  for (const std::size_t i : {6, 0, 4, 1, 3, 5}) release(blocks[i]);  // not 2 and 7: rows of 2 and of 4
  MemoryBlock* first = allocate(stream, 512_KiB);
  CHECK(first->data == data);
  MemoryBlock* second = allocate(stream, 1_MiB);
  CHECK(second->data == place(blocks[2], 256_KiB));
  CHECK_THROWS_AS(allocate(stream, 256), OutOfMemory);
  release(second);
  second = allocate(stream, 768_KiB);  // three of the four
  MemoryBlock* last = allocate(stream, 256_KiB);
  CHECK(last->data == place(second, 768_KiB));
  release_all({first, second, last, blocks[2], blocks[7]});
  MemoryBlock* whole = allocate(stream, 2_MiB);
  CHECK(whole->data == data);
  CHECK(fresh.raw_allocations() == 1);
  release(whole);
}

TEST_CASE("blocks of two segments do not join, although these lie side by side") {
  const Device device = device_at(2);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  auto* const arena = static_cast<std::byte*>(backend(device).allocate(device.index(), 16_MiB));
  REQUIRE(arena);
  std::size_t taken = 0;
  set_memory_resource(device, {.allocate = [&](Device, std::size_t bytes) -> void* {
                                 return taken + bytes > 16_MiB ? nullptr : arena + std::exchange(taken, taken + bytes);
                               },
                               .free = [](Device, void*, std::size_t) {}});
  MemoryBlock* first = allocate(stream, 8_MiB);
  MemoryBlock* second = allocate(stream, 8_MiB);
  CHECK(second->data == place(first, 8_MiB));
  release_all({second, first});
  std::vector<MemoryBlock*> halves;  // of the first, then of the second
  for (int i = 0; i < 4; ++i) halves.push_back(allocate(stream, 4_MiB));
  CHECK(halves[2]->data == place(halves[1], 4_MiB));
  release_all({halves[1], halves[2]});
  CHECK_THROWS_AS(allocate(stream, 8_MiB), OutOfMemory);
  release_all({halves[0], halves[3]});
  set_memory_resource(device, {});
  empty_cache(device);
  backend(device).free(device.index(), arena);
}

// As in training at several scales: a device that is full is neither asked nor given anything back, once there is
// something of each size.
TEST_CASE("steps of changing sizes at the limit settle without raw memory") {
  SharingDevice fresh(device_at(1));
  set_memory_limit(device_at(1), 16_MiB);
  CHECK(late_raw_allocations(device_at(1)) == 0);
  CHECK(memory_stats(device_at(1)).cached_bytes <= 16_MiB);
}

TEST_CASE("a device's own memory that has ended is not asked for in each step of changing sizes") {
  SharingDevice fresh(device_at(7));  // 16 MiB
  CHECK(late_raw_allocations(device_at(7)) == 0);
  CHECK(memory_stats(device_at(7)).cached_bytes <= 16_MiB);
}

TEST_CASE("blocks that are cut and joined at random never overlap, and all come back") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  SharingDevice fresh(device);
  constexpr std::size_t kLimit = std::size_t{24} << 20;
  set_memory_limit(device, kLimit);
  std::mt19937_64 random(11);
  std::map<std::byte*, MemoryBlock*> live;
  std::size_t in_use = 0;
  int refused = 0;
  for (int i = 0; i < 6000; ++i) {
    if (!live.empty() && (random() % 9 < 4 || live.size() > 40)) {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      in_use -= detail::class_bytes(victim->second->bin);
      release(victim->second);
      live.erase(victim);
      continue;
    }
    const std::size_t bytes = std::size_t{1} << (random() % 23);
    const std::size_t wanted = bytes + random() % bytes;
    MemoryBlock* block = nullptr;
    try {
      block = allocate(stream, wanted);
    } catch (const OutOfMemory&) {
      ++refused;
      continue;
    }
    REQUIRE(block->bytes >= wanted);
    auto* const begin = static_cast<std::byte*>(block->data);
    REQUIRE(reinterpret_cast<std::uintptr_t>(begin) % 256 == 0);
    const auto after = live.lower_bound(begin);
    REQUIRE((after == live.end() || begin + block->bytes <= after->first));
    if (after != live.begin()) {
      const auto& [place_before, before] = *std::prev(after);
      REQUIRE(place_before + before->bytes <= begin);
    }
    live[begin] = block;
    in_use += detail::class_bytes(block->bin);
    const MemoryStats stats = memory_stats(device);
    REQUIRE(stats.in_use_bytes + stats.cached_bytes <= kLimit);
    REQUIRE(stats.in_use_bytes == in_use);
  }
  CHECK(refused > 100);
  CHECK(fresh.raw_allocations() > 3);
  for (const auto& [begin, block] : live) release(block);
  CHECK(memory_stats(device).in_use_bytes == 0);
  MemoryBlock* all = allocate(stream, kLimit);
  release(all);
  empty_cache(device);
  CHECK(memory_stats(device).cached_bytes == 0);
  CHECK(fresh.raw_allocations() == fresh.raw_frees());
}

// Of what is in use nothing can move: where whole segments go back, more fits.
TEST_CASE("memory is not shared on a device of which more than half was in use") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  const auto two_fit = [&] {
    empty_cache(device);
    set_memory_limit(device, 160_MiB);
    release(allocate(stream, 128_MiB));
    MemoryBlock* first = allocate(stream, 80_MiB);
    MemoryBlock* second = nullptr;
    try {
      second = allocate(stream, 80_MiB);
    } catch (const OutOfMemory&) {
    }
    release(first);
    release(second);
    return second != nullptr;
  };
  {
    FreshDevice fresh(device);
    CHECK(two_fit());
    CHECK(fresh.raw_frees() == 1);
  }
  {
    SharingDevice fresh(device);
    CHECK_FALSE(two_fit());
  }
  {
    FreshDevice fresh(device);
    set_memory_sharing(device, std::numeric_limits<double>::infinity());
    CHECK(two_fit());
    set_memory_sharing(device, 2);
  }
  CHECK_THROWS_WITH(set_memory_sharing(device, -1), Catch::Matchers::Contains("expected a multiple of 0 or more") &&
                                                        Catch::Matchers::Contains("got -1"));
  CHECK_THROWS_AS(set_memory_sharing(device, std::numeric_limits<double>::quiet_NaN()), InvalidArgument);
}

TEST_CASE("memory is shared on a device that holds twice of what was in use at the most, whoever resets the peak") {
  const Device device = device_at(3);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  void* smallest = nullptr;
  for (const std::size_t bytes : {64_MiB, 80_MiB, 96_MiB}) {
    MemoryBlock* block = allocate(stream, bytes);
    if (!smallest) smallest = block->data;
    release(block);
  }
  set_memory_limit(device, 240_MiB);
  MemoryBlock* part = allocate(stream, 48_MiB);
  CHECK(part->data == smallest);
  CHECK(fresh.raw_frees() == 0);
  release(part);
  release_all({allocate(stream, 96_MiB), allocate(stream, 80_MiB)});  // 176 MiB at once
  reset_peak(device);
  part = allocate(stream, 40_MiB);
  CHECK(fresh.raw_frees() > 0);
  release(part);
}
