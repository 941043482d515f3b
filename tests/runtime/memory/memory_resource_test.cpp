// A program's own source of raw memory under the caching allocator, on every kind of device.
#include "lockstep/runtime/memory/memory_resource.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::device_name;

namespace {

constexpr std::size_t kMebi = 1 << 20;

// An engine that manages the memory of a device itself: of the host's by its own means, else with the backend's help.
// It has no lock, and needs none.
class OwnMemory {
 public:
  explicit OwnMemory(Device device) : device_(device), before_(memory_stats(device)) {
    empty_cache(device);
    before_ = memory_stats(device);
    set_memory_resource(device, resource());
  }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  ~OwnMemory() {
    inside = nullptr;
    set_memory_limit(device_, 0);
    set_memory_resource(device_, {});
    empty_cache(device_);
  }

  MemoryResource resource() {
    return {.allocate = [this](Device device, std::size_t bytes) { return allocate(device, bytes); },
            .free = [this](Device device, void* memory, std::size_t bytes) { free(device, memory, bytes); }};
  }
  MemoryStats since() const {
    MemoryStats stats = memory_stats(device_);
    stats.raw_allocations -= before_.raw_allocations;
    stats.raw_frees -= before_.raw_frees;
    return stats;
  }

  std::map<void*, std::size_t> given;
  std::size_t given_bytes = 0, capacity = 48 * kMebi, offset = 0;
  std::uint64_t allocations = 0, frees = 0;  // calls
  int wrong = 0;                             // of another device, of other bytes
  void* last = nullptr;
  std::function<void()> inside;  // called in every call: before memory is given out, after it came back

 private:
  void* allocate(Device device, std::size_t bytes) {
    ++allocations;
    wrong += device != device_ || bytes == 0;
    if (inside) inside();
    if (bytes > capacity - given_bytes) return nullptr;
    last = static_cast<std::byte*>(take(bytes + offset)) + offset;
    given[last] = bytes;
    given_bytes += bytes;
    return last;
  }
  void free(Device device, void* memory, std::size_t bytes) {
    ++frees;
    const auto found = given.find(memory);
    if (device != device_ || found == given.end() || found->second != bytes) {
      ++wrong;
      return;
    }
    if (properties(device).host_memory) std::memset(memory, 1, bytes);  // may be touched again
    given.erase(found);
    given_bytes -= bytes;
    give(static_cast<std::byte*>(memory) - offset);
    if (inside) inside();
  }
  void* take(std::size_t bytes) {
    if (!properties(device_).host_memory) return backend(device_).allocate(device_.index(), bytes);
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void give(void* memory) {
    if (!properties(device_).host_memory) return backend(device_).free(device_.index(), memory);
    std::free(memory);
  }

  const Device device_;
  MemoryStats before_;
};

struct GiveBack {
  void operator()(MemoryBlock* block) const noexcept { release(block); }
};
using HeldBlock = std::unique_ptr<MemoryBlock, GiveBack>;

// A byte by way of the last one of the block.
int byte_through(const MemoryBlock& block, const Stream& stream, int value) {
  unsigned char byte = 0;
  stream.backend().fill_bytes(block.data, value, block.bytes, stream.handle());
  copy_bytes({&byte, Device::cpu(), static_cast<std::byte*>(block.data) + block.bytes - 1, block.device, 1}, stream,
             default_stream(Device::cpu()));
  return byte;
}

}  // namespace

TEST_CASE("segments come from a memory resource and go back to it, and the cache stays above") {
  const Device device = device_at(1);
  OwnMemory engine(device);
  {
    const Stream stream(device);
    const HeldBlock small(allocate(stream, 1000));
    CHECK(engine.allocations == 1);
    CHECK(small->data == engine.last);
    const HeldBlock second(allocate(stream, 1000));
    CHECK(engine.allocations == 1);
    const HeldBlock large(allocate(stream, 3 * kMebi));
    CHECK(engine.allocations == 2);
    CHECK(large->data == engine.last);
    CHECK(byte_through(*small, stream, 7) == 7);
    CHECK(byte_through(*second, stream, 8) == 8);
    CHECK(byte_through(*large, stream, 9) == 9);
    const MemoryStats stats = engine.since();
    CHECK(stats.raw_allocations == engine.allocations);
    CHECK(stats.in_use_bytes + stats.cached_bytes == engine.given_bytes);
  }
  CHECK(engine.frees == 0);
  empty_cache(device);
  CHECK(engine.frees == 2);
  CHECK(engine.given.empty());
  CHECK(engine.wrong == 0);
  CHECK(engine.since().raw_frees == 2);
  CHECK(engine.since().cached_bytes == 0);
}

TEST_CASE("the limit holds for memory of a resource, which is not even asked") {
  const Device device = device_at(1);
  OwnMemory engine(device);
  const Stream stream(device);
  set_memory_limit(device, 2 * kMebi);
  CHECK_THROWS_AS(allocate(stream, 3 * kMebi), OutOfMemory);
  CHECK(engine.allocations == 0);
}

TEST_CASE("a resource that has nothing left is asked again after a flush, then memory is out") {
  const Device device = device_at(1);
  OwnMemory engine(device);
  const Stream stream(device);
  release(allocate(stream, 24 * kMebi));
  {
    const HeldBlock block(allocate(stream, 32 * kMebi));
    CHECK(engine.allocations == 3);  // the second call got nothing
    CHECK(engine.frees == 1);
    try {
      release(allocate(stream, 20 * kMebi));
      FAIL("there was memory");
    } catch (const OutOfMemory& error) {
      CHECK(error.device == device);
      CHECK(error.requested_bytes == 20 * kMebi);
      CHECK(error.in_use_bytes == block->bytes);
    }
    CHECK(engine.since().cached_bytes == 0);
    CHECK(byte_through(*block, stream, 5) == 5);
  }
  const HeldBlock other(allocate(stream, 20 * kMebi));
  CHECK(engine.wrong == 0);
}

TEST_CASE("an exception of a resource passes to who allocates, and nothing is lost") {
  const Device device = device_at(1);
  OwnMemory engine(device);
  const Stream stream(device);
  const HeldBlock held(allocate(stream, 1000));
  const MemoryStats before = engine.since();
  set_memory_limit(device, 8 * kMebi);
  engine.inside = [] { throw std::domain_error("the engine is busy"); };
  for (int i = 0; i < 4; ++i)  // each one would count against the limit
    CHECK_THROWS_WITH(allocate(stream, 3 * kMebi), "the engine is busy");
  engine.inside = nullptr;
  CHECK(engine.since().in_use_bytes == before.in_use_bytes);
  CHECK(engine.since().cached_bytes == before.cached_bytes);
  release(allocate(stream, 3 * kMebi));
  int asked = 0;
  engine.inside = [&] {
    ++asked;
    throw std::domain_error("not now");
  };
  CHECK_NOTHROW(empty_cache(device));  // what `free` throws is dropped
  engine.inside = nullptr;
  CHECK(asked == 1);
  CHECK(engine.since().raw_frees == 1);
}

TEST_CASE("memory that is not aligned goes back to its resource, and the error names the address") {
  const Device device = device_at(1);
  OwnMemory engine(device);
  const Stream stream(device);
  for (const std::size_t offset : {std::size_t{8}, std::size_t{128}}) {
    engine.offset = offset;
    std::string message;
    try {
      release(allocate(stream, 3 * kMebi));
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    char address[32];
    std::snprintf(address, sizeof address, "at 0x%llx (",
                  static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(engine.last)));
    CHECK_THAT(message,
               Contains("expected memory at a multiple of 256 from the memory resource of " + device_name(1)) &&
                   Contains(address));
    CHECK(engine.given.empty());
    CHECK(engine.since().cached_bytes == 0);
  }
  CHECK(engine.wrong == 0);
  engine.offset = 0;
  release(allocate(stream, 3 * kMebi));
}

TEST_CASE("a resource is set at any time: each segment goes back where it came from, and the resource goes last") {
  const Device device = device_at(1);
  OwnMemory engine(device);
  set_memory_resource(device, {});
  const Stream stream(device);
  bool gone = false;
  // Whoever lets go of it last must not hold the allocator's lock.
  std::shared_ptr<int> token(new int(0), [&, device](const int* what) {
    (void)memory_stats(device);
    gone = true;
    delete what;
  });
  HeldBlock first(allocate(stream, 3 * kMebi));
  CHECK(engine.allocations == 0);
  {
    MemoryResource resource = engine.resource();
    resource.allocate = [token, allocate = resource.allocate](Device on, std::size_t bytes) {
      return allocate(on, bytes);
    };
    set_memory_resource(device, std::move(resource));
  }
  token.reset();
  HeldBlock second(allocate(stream, 3 * kMebi));
  CHECK(engine.allocations == 1);
  set_memory_resource(device, {});
  HeldBlock third(allocate(stream, 3 * kMebi));
  CHECK(engine.allocations == 1);
  const void* const data = second->data;
  second.reset();
  second.reset(allocate(stream, 3 * kMebi));
  CHECK(second->data == data);  // what is cached is used on
  CHECK_FALSE(gone);
  for (HeldBlock* block : {&first, &second, &third}) block->reset();
  CHECK_FALSE(gone);
  empty_cache(device);
  CHECK(gone);
  CHECK(engine.frees == 1);
  CHECK(engine.wrong == 0);
  CHECK(engine.since().raw_frees == 3);
}

TEST_CASE("a resource without memory out is gone when it is replaced") {
  const Device device = device_at(1);
  empty_cache(device);
  bool gone = false;
  std::shared_ptr<int> token(new int(0), [&, device](const int* what) {
    (void)memory_stats(device);
    gone = true;
    delete what;
  });
  set_memory_resource(device, {.allocate = [token](Device, std::size_t) -> void* { return nullptr; },
                               .free = [](Device, void*, std::size_t) {}});
  token.reset();
  const Stream stream(device);
  CHECK_THROWS_AS(allocate(stream, 3 * kMebi), OutOfMemory);
  CHECK_FALSE(gone);
  set_memory_resource(device, {});
  CHECK(gone);
  release(allocate(stream, 3 * kMebi));
  empty_cache(device);
}

TEST_CASE("a memory resource has both functions, or none") {
  const Device device = device_at(1);
  CHECK_THROWS_WITH(
      set_memory_resource(device, {.allocate = [](Device, std::size_t) -> void* { return nullptr; }}),
      "[set_memory_resource] expected both functions or none for " + device_name(1) + ", got allocate without free");
  CHECK_THROWS_AS(set_memory_resource(device, {.allocate = {}, .free = [](Device, void*, std::size_t) {}}),
                  InvalidArgument);
  CHECK_THROWS_AS(set_memory_resource(Device::host(99), {}), InvalidArgument);
  const Stream stream(device);
  release(allocate(stream, 3 * kMebi));
}

TEST_CASE("a resource may ask for figures; what needs memory in it is an error and no hang") {
  const Device device = device_at(1), other = device_at(0);
  empty_cache(other);
  OwnMemory engine(device);
  const Stream stream(device), others(other);
  int calls = 0, refused = 0;
  engine.inside = [&] {
    ++calls;
    (void)memory_stats(device);
    for (const Stream* each : {&stream, &others}) {
      try {
        release(allocate(*each, 5 * kMebi));
      } catch (const InvalidArgument& error) {
        refused += std::string_view(error.what()).find("from inside a memory resource") != std::string_view::npos;
      }
      try {
        empty_cache(each->device());
      } catch (const InvalidArgument&) {
        ++refused;
      }
    }
  };
  release(allocate(stream, 3 * kMebi));
  CHECK(calls == 1);
  CHECK(refused == 4);
  empty_cache(device);
  CHECK(calls == 2);
  CHECK(refused == 8);
  engine.inside = nullptr;
  for (const Stream* each : {&stream, &others}) release(allocate(*each, 5 * kMebi));
  empty_cache(other);
  CHECK(engine.wrong == 0);
}

TEST_CASE("calls of memory resources come one at a time, whatever threads and devices") {
  OwnMemory first(device_at(1)), second(device_at(2));
  std::atomic<int> inside{0}, overlaps{0}, failures{0};
  const auto look = [&] {
    if (inside.fetch_add(1) != 0) ++overlaps;
    std::this_thread::yield();
    --inside;
  };
  first.inside = look;
  second.inside = look;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      try {
        const Device device = device_at(1 + t % 2);
        const Stream stream(device);
        for (int i = 0; i < 20; ++i) {
          release(allocate(stream, 3 * kMebi));
          empty_cache(device);
        }
      } catch (...) {
        ++failures;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(failures == 0);
  CHECK(overlaps == 0);
  CHECK(first.allocations > 0);
  CHECK(second.allocations > 0);
  CHECK(first.wrong + second.wrong == 0);
}

TEST_CASE("the order checker knows memory of a resource") {
  const Device device = device_at(1);
  if (!properties(device).checked || !properties(device).host_memory) return;
  OwnMemory engine(device);
  const Stream stream(device), stranger(device_at(2));
  const HeldBlock block(allocate(stream, 1000));
  CHECK_THROWS_WITH(stranger.backend().fill_bytes(block->data, 1, 8, stranger.handle()),
                    Contains("in the memory of " + device_name(1)));
}

// Says something where LOCKSTEP_CACHE=off is set: tests/CMakeLists.txt runs it that way too.
TEST_CASE("without a cache every block is a memory resource's, of just its bytes") {
  const char* set = std::getenv("LOCKSTEP_CACHE");
  const bool off = set && std::string_view(set) == "off";
  const Device device = device_at(1);
  OwnMemory engine(device);
  const Stream stream(device);
  {
    const HeldBlock empty(allocate(stream, 0)), block(allocate(stream, 1000));
    CHECK(engine.allocations == (off ? 2u : 1u));
    if (off) CHECK(engine.given_bytes == 1001);
    CHECK(byte_through(*block, stream, 6) == 6);
  }
  empty_cache(device);
  CHECK(engine.frees == engine.allocations);
  CHECK(engine.given.empty());
  CHECK(engine.wrong == 0);
}
