#include "lockstep/runtime/memory/allocator.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/poison.h"
#include "lockstep/runtime/size_classes.h"
#include "runtime/memory/fresh_device.h"
#include "runtime/text.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using runtime_test::FreshDevice;
using support::device_at;
using support::device_name;

namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

}  // namespace

TEST_CASE("size classes waste at most a quarter") {
  int last = -1;
  for (std::size_t bytes = 0; bytes < 100'000; bytes += 13) {
    const int index = detail::size_class(bytes);
    const std::size_t size = detail::class_bytes(index);
    REQUIRE(size >= bytes);
    REQUIRE(size % 256 == 0);
    REQUIRE(index >= last);
    if (index > 0) REQUIRE(detail::class_bytes(index - 1) < std::max<std::size_t>(bytes, 1));
    if (bytes >= 256) REQUIRE(detail::fitting_class(bytes) == (size == bytes ? index : index - 1));
    if (bytes > 1024) REQUIRE(4 * size <= 5 * (bytes + 255));
    last = index;
  }
  for (int index = 0; index < detail::kSizeClasses; ++index) {
    const std::size_t size = detail::class_bytes(index);
    CHECK(detail::size_class(size) == index);
    CHECK(detail::size_class(size - 1) == index);
    if (index + 1 < detail::kSizeClasses) CHECK(detail::size_class(size + 1) == index + 1);
  }
  CHECK(detail::class_bytes(detail::kLargestCarvedClass) == 256 * kKiB);
}

TEST_CASE("a block is aligned, writable, and says what it is") {
  const Stream stream = default_stream(device_at(0));
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{257}, 300 * kKiB, 3 * kMiB + 5}) {
    MemoryBlock* block = allocate(stream, bytes);
    REQUIRE(block);
    CHECK(block->bytes >= bytes);
    CHECK(block->device == device_at(0));
    CHECK(block->stream == &stream.body());
    REQUIRE(block->data);
    CHECK(reinterpret_cast<std::uintptr_t>(block->data) % 256 == 0);
    std::memset(block->data, 7, block->bytes);
    release(block);
  }
  release(nullptr);
}

TEST_CASE("blocks do not overlap") {
  FreshDevice fresh(device_at(0));
  const Stream stream = default_stream(device_at(0));
  std::mt19937 random(3);
  std::vector<std::pair<MemoryBlock*, unsigned char>> held;
  for (int i = 0; i < 3000; ++i) {
    if (held.size() > 100 || (held.size() > 3 && random() % 3 == 0)) {
      const std::size_t at = random() % held.size();
      const auto [block, value] = held[at];
      const auto* bytes = static_cast<const unsigned char*>(block->data);
      bool intact = true;
      for (std::size_t k = 0; k < block->bytes; ++k) intact = intact && bytes[k] == value;
      REQUIRE(intact);
      release(block);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      MemoryBlock* block = allocate(stream, random() % (random() % 20 == 0 ? 600'000 : 5000));
      const auto value = static_cast<unsigned char>(random());
      std::memset(block->data, value, block->bytes);
      held.emplace_back(block, value);
    }
  }
  for (const auto& [block, value] : held) release(block);
}

TEST_CASE("a released block is the next one of its class") {
  const Stream stream = default_stream(device_at(0));
  Stream other(device_at(0));
  MemoryBlock* block = allocate(stream, 5000);
  void* const data = block->data;
  release(block);
  MemoryBlock* elsewhere = allocate(other, 5000);
  CHECK(elsewhere->data != data);  // the other stream's order says nothing about it
  MemoryBlock* again = allocate(stream, 4900);
  CHECK(again->data == data);
  release(again);
  release(elsewhere);
}

TEST_CASE("the figures are exact") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  CHECK(memory_stats(device).in_use_bytes == 0);
  CHECK(memory_stats(device).cached_bytes == 0);

  MemoryBlock* small = allocate(stream, 1000);  // 1024, out of a segment
  CHECK(memory_stats(device).in_use_bytes == 1024);
  CHECK(memory_stats(device).cached_bytes == 2 * kMiB - 1024);
  CHECK(fresh.raw_allocations() == 1);
  MemoryBlock* large = allocate(stream, 3 * kMiB);
  CHECK(memory_stats(device).in_use_bytes == 3 * kMiB + 1024);
  CHECK(fresh.raw_allocations() == 2);
  release(large);
  CHECK(memory_stats(device).in_use_bytes == 1024);
  CHECK(memory_stats(device).cached_bytes == 5 * kMiB - 1024);
  CHECK(memory_stats(device).peak_in_use_bytes == 3 * kMiB + 1024);
  reset_peak(device);
  CHECK(memory_stats(device).peak_in_use_bytes == 1024);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 1);  // the segment holds a block that is in use
  CHECK(memory_stats(device).cached_bytes == 2 * kMiB - 1024);
  release(small);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 2);
  CHECK(memory_stats(device).cached_bytes == 0);
  CHECK(memory_stats(device).in_use_bytes == 0);
}

TEST_CASE("after warm-up no raw memory is asked for") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  std::mt19937 random(5);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 100; ++i) sizes.push_back(random() % (i % 10 == 0 ? 4 * kMiB : 100 * kKiB));
  auto step = [&] {
    std::vector<MemoryBlock*> blocks;
    for (const std::size_t bytes : sizes) blocks.push_back(allocate(stream, bytes));
    for (MemoryBlock* block : blocks) release(block);
  };
  step();
  const MemoryStats warm = memory_stats(device);
  for (int i = 0; i < 50; ++i) step();
  CHECK(memory_stats(device).raw_allocations == warm.raw_allocations);
  CHECK(memory_stats(device).raw_frees == warm.raw_frees);
  CHECK(memory_stats(device).cached_bytes == warm.cached_bytes);
}

TEST_CASE("what a flush cannot give back stays in use") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  MemoryBlock* held = allocate(stream, 4096);
  MemoryBlock* cached = allocate(stream, 4096);
  void* const data = cached->data;
  release(cached);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 0);
  MemoryBlock* again = allocate(stream, 4096);
  CHECK(again->data == data);
  MemoryBlock* other = allocate(stream, 9000);  // the segment is still open for new blocks
  CHECK(fresh.raw_allocations() == 1);
  for (MemoryBlock* block : {held, again, other}) release(block);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 1);
}

TEST_CASE("the rest of a segment serves smaller blocks") {
  const Device device = device_at(1);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  std::vector<MemoryBlock*> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(allocate(stream, 224 * kKiB));  // 9 of 224 KiB leave 32 KiB
  CHECK(fresh.raw_allocations() == 1);
  blocks.push_back(allocate(stream, 224 * kKiB));
  CHECK(fresh.raw_allocations() == 2);
  blocks.push_back(allocate(stream, 32 * kKiB));
  CHECK(fresh.raw_allocations() == 2);
  CHECK(blocks.back()->segment == blocks.front()->segment);
  for (MemoryBlock* block : blocks) release(block);
  empty_cache(device);
  CHECK(fresh.raw_frees() == 2);
  CHECK(memory_stats(device).cached_bytes == 0);
}

TEST_CASE("beyond the limit there is no memory, and everything stays usable") {
  const Device device = device_at(2);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  set_memory_limit(device, 10 * kMiB);
  MemoryBlock* first = allocate(stream, 6 * kMiB);
  std::string text;
  try {
    release(allocate(stream, 5 * kMiB));
  } catch (const OutOfMemory& error) {
    text = error.what();
    CHECK(error.device == device);
    CHECK(error.requested_bytes == 5 * kMiB);
    CHECK(error.in_use_bytes == 6 * kMiB);
    CHECK(error.cached_bytes == 0);
    CHECK(error.limit_bytes == 10 * kMiB);
  }
  CHECK(text == "[allocate] expected 5 MiB on " + device_name(2) +
                    ", got out of memory (6 MiB in use, 0 bytes cached, limit 10 MiB)");
  MemoryBlock* second = allocate(stream, 4 * kMiB);
  release(first);
  MemoryBlock* third = allocate(stream, 5 * kMiB);  // the cached 6 MiB go back for it
  CHECK(memory_stats(device).in_use_bytes == 9 * kMiB);
  CHECK(fresh.raw_frees() == 1);
  set_memory_limit(device, 0);
  MemoryBlock* fourth = allocate(stream, 32 * kMiB);
  for (MemoryBlock* block : {second, third, fourth}) release(block);
}

TEST_CASE("small blocks fit where no segment does") {
  const Device device = device_at(2);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  set_memory_limit(device, 4096);
  std::vector<MemoryBlock*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(stream, 1024));
  CHECK_THROWS_AS(allocate(stream, 1), OutOfMemory);
  release(blocks.back());
  blocks.back() = allocate(stream, 256);  // another class: the cache gives way
  for (MemoryBlock* block : blocks) release(block);
}

TEST_CASE("a device's own memory ends too") {
  const Device device = device_at(7);  // 16 MiB
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  std::vector<MemoryBlock*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(stream, 4 * kMiB));
  CHECK_THROWS_AS(allocate(stream, 1), OutOfMemory);
  for (MemoryBlock* block : blocks) release(block);
  CHECK_THROWS_AS(allocate(stream, 17 * kMiB), OutOfMemory);
  release(allocate(stream, 16 * kMiB));  // the four went back
  CHECK(fresh.raw_frees() >= 4);
}

TEST_CASE("sizes that no machine has are out of memory, not overflow") {
  const Stream stream = default_stream(device_at(0));
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMost, kMost - 1, kMost - 255, kMost - 256, kMost / 2 + 1, kMost / 2,
                                  detail::kLargestBytes + 1, detail::kLargestBytes, std::size_t{1} << 47}) {
    bool refused = false;
    try {
      release(allocate(stream, bytes));
    } catch (const OutOfMemory& error) {
      refused = error.requested_bytes == bytes;
    }
    CHECK(refused);
  }
  release(allocate(stream, 100));
}

TEST_CASE("any thread may release a block") {
  const Device device = device_at(3);
  const Stream stream = default_stream(device);
  FreshDevice fresh(device);
  std::vector<MemoryBlock*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(allocate(stream, 2048));
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      for (std::size_t i = k; i < blocks.size(); i += 4) release(blocks[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(memory_stats(device).in_use_bytes == 0);
  CHECK(fresh.raw_allocations() == 1);
}

TEST_CASE("threads allocate and release at once, and use what they got") {
  const Device device = device_at(3);
  FreshDevice fresh(device);
  std::vector<std::thread> threads;
  std::atomic<int> broken{0};
  for (unsigned k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      Stream stream(device);
      std::mt19937 random(k);
      std::vector<MemoryBlock*> held;
      for (int i = 0; i < 2000; ++i) {
        if (held.size() > 10) {
          MemoryBlock* block = held[random() % held.size()];
          std::erase(held, block);
          if (*static_cast<unsigned*>(block->data) != k) ++broken;
          release(block);
        } else {
          MemoryBlock* block = allocate(random() % 2 ? stream : default_stream(device), 4 + random() % 20'000);
          *static_cast<unsigned*>(block->data) = k;  // plain writes: ThreadSanitizer sees a block given out twice
          held.push_back(block);
        }
        if (i % 500 == 0) empty_cache(device);
      }
      for (MemoryBlock* block : held) release(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(broken == 0);
  CHECK(memory_stats(device).in_use_bytes == 0);
  empty_cache(device);
  CHECK(memory_stats(device).cached_bytes == 0);
}

TEST_CASE("threads that are short of memory get it from each other's cache") {
  const Device device = device_at(7);  // 16 MiB
  FreshDevice fresh(device);
  std::vector<std::thread> threads;
  for (unsigned k = 0; k < 3; ++k) {
    threads.emplace_back([&, k] {
      Stream stream(device);
      for (std::size_t i = 0; i < 300; ++i) {
        try {
          MemoryBlock* block = allocate(stream, (1 + (i + k) % 4) * kMiB);  // at most 12 MiB in use
          *static_cast<unsigned*>(block->data) = k;
          release(block);
        } catch (const OutOfMemory&) {
          // Others may have taken what the flushes gave back, again and again: rare, and no error.
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(memory_stats(device).in_use_bytes == 0);
  release(allocate(default_stream(device), 16 * kMiB));
}

TEST_CASE("blocks outlive their stream, and their memory serves others") {
  const Device device = device_at(4);
  FreshDevice fresh(device);
  MemoryBlock* held;
  void* cached;
  {
    Stream stream(device);
    held = allocate(stream, 3000);
    MemoryBlock* block = allocate(stream, 9000);
    cached = block->data;
    release(block);
  }
  void* const data = held->data;
  release(held);
  Stream next(device);
  MemoryBlock* first = allocate(next, 9000);
  MemoryBlock* second = allocate(next, 3000);
  CHECK(first->data != second->data);
  if (!next.checked()) {  // there every Stream object has a stream of its own
    CHECK(first->data == cached);
    CHECK(second->data == data);
  }
  release(second);
  release(first);
  CHECK(memory_stats(device).in_use_bytes == 0);
  empty_cache(device);
  CHECK(memory_stats(device).cached_bytes == 0);
}

#ifdef LOCKSTEP_POISONS
TEST_CASE("AddressSanitizer guards cached memory where nothing is in flight") {
  const Stream stream = default_stream(Device::cpu());
  MemoryBlock* block = allocate(stream, 1000);
  auto* const bytes = static_cast<char*>(block->data);
  CHECK_FALSE(__asan_address_is_poisoned(bytes));
  CHECK_FALSE(__asan_address_is_poisoned(bytes + 999));
  CHECK(__asan_address_is_poisoned(bytes + 1000));
  CHECK(__asan_address_is_poisoned(bytes + 1023));
  release(block);
  CHECK(__asan_address_is_poisoned(bytes));
  CHECK(__asan_address_is_poisoned(bytes + 999));
  block = allocate(stream, 1024);
  CHECK(block->data == bytes);
  CHECK_FALSE(__asan_address_is_poisoned(bytes + 1023));
  release(block);
}
#endif
