#include "lockstep/runtime/order/byte_runs.h"

#include <random>
#include <set>

#include "lockstep/runtime/order/shadow_memory.h"
#include "lockstep/runtime/order/vector_clock.h"
#include "support/catch.h"

using namespace lockstep;
using namespace lockstep::detail;

namespace {

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

// Every byte, element by element.
std::set<std::uintptr_t> bytes_by_hand(const MemoryUse& use) {
  std::set<std::uintptr_t> bytes;
  std::int64_t count = 1;
  for (int d = 0; d < use.rank; ++d) count *= use.sizes[d];
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::uintptr_t address = reinterpret_cast<std::uintptr_t>(use.data);
    for (int d = 0; d < use.rank; ++d) {
      address += static_cast<std::uintptr_t>(rest % use.sizes[d] * use.byte_strides[d]);
      rest /= use.sizes[d];
    }
    for (std::size_t b = 0; b < use.element_bytes; ++b) bytes.insert(address + b);
  }
  return bytes;
}

}  // namespace

TEST_CASE("the runs of a strided use are exactly its bytes") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    MemoryUse use{
        .data = at(10'000), .element_bytes = std::size_t{1} << random() % 4, .rank = static_cast<int>(random() % 5)};
    for (int d = 0; d < use.rank; ++d) {
      use.sizes[d] = 1 + static_cast<int>(random() % 5);
      use.byte_strides[d] = static_cast<std::int64_t>(random() % 9 * (random() % 3 == 0 ? 1 : use.element_bytes));
    }
    const std::set<std::uintptr_t> expected = bytes_by_hand(use);
    std::vector<ByteRun> runs;
    REQUIRE(append_runs(use, runs));
    std::set<std::uintptr_t> found;
    for (const ByteRun& run : runs) {
      for (std::uintptr_t b = run.begin; b < run.end; ++b) found.insert(b);
    }
    REQUIRE(found == expected);
    const ByteRun bounds = bounds_of(use);
    REQUIRE(bounds.begin == *expected.begin());
    REQUIRE(bounds.end == *expected.rbegin() + 1);
  }
}

TEST_CASE("dense uses are one run, whatever the order of their dimensions") {
  const auto count = [](MemoryUse use) {
    std::vector<ByteRun> runs;
    append_runs(use, runs);
    return runs.size();
  };
  CHECK(count({.data = at(64), .element_bytes = 100}) == 1);
  CHECK(count({.data = at(64), .element_bytes = 4, .rank = 2, .sizes = {8, 16}, .byte_strides = {64, 4}}) == 1);
  CHECK(count({.data = at(64), .element_bytes = 4, .rank = 2, .sizes = {16, 8}, .byte_strides = {4, 64}}) == 1);
  CHECK(count({.data = at(64), .element_bytes = 4, .rank = 3, .sizes = {8, 1000, 16}, .byte_strides = {64, 0, 4}}) ==
        1);
  CHECK(count({.data = at(64), .element_bytes = 4, .rank = 2, .sizes = {8, 15}, .byte_strides = {64, 4}}) == 8);
}

TEST_CASE("a use of nothing has no bytes, and one too scattered is not followed") {
  const MemoryUse nothing{.data = at(64), .element_bytes = 4, .rank = 2, .sizes = {8, 0}, .byte_strides = {64, 4}};
  CHECK(bounds_of(nothing).begin == bounds_of(nothing).end);
  std::vector<ByteRun> runs;
  const MemoryUse many{.data = at(64), .element_bytes = 4, .rank = 2, .sizes = {300, 300}, .byte_strides = {4000, 8}};
  CHECK_FALSE(append_runs(many, runs));
  CHECK(runs.empty());
  const MemoryUse overflowing{.data = at(64),
                              .element_bytes = 1,
                              .rank = 2,
                              .sizes = {std::int64_t{1} << 40, std::int64_t{1} << 40},
                              .byte_strides = {8, 4}};
  CHECK_FALSE(append_runs(overflowing, runs));
}

TEST_CASE("vector clocks join to the larger tick of each actor") {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::uint64_t expected[12] = {};
    VectorClock a, b;
    for (int i = 0; i < 8; ++i) {
      const ActorId actor = random() % 12;
      const std::uint64_t tick = 1 + random() % 5;
      (random() % 2 ? a : b).raise(actor, tick);
      expected[actor] = std::max(expected[actor], tick);
    }
    VectorClock joined = a;
    joined.join(b);
    for (ActorId actor = 0; actor < 12; ++actor) {
      CHECK(joined[actor] == expected[actor]);
      CHECK(joined[actor] == std::max(a[actor], b[actor]));
    }
    VectorClock other = b;
    other.join(a);
    for (ActorId actor = 0; actor < 12; ++actor) CHECK(other[actor] == joined[actor]);
  }
}

TEST_CASE("shadow memory knows each byte's last write and the reads since") {
  std::mt19937 random(3);
  constexpr std::uintptr_t kBytes = 64;
  for (int round = 0; round < 200; ++round) {
    ShadowMemory shadow;
    const auto operation = std::make_shared<const Operation>();
    std::uint64_t write[kBytes] = {};
    std::set<std::uint64_t> reads[kBytes];
    for (std::uint64_t tick = 1; tick < 40; ++tick) {
      const std::uintptr_t begin = random() % kBytes, end = begin + 1 + random() % (kBytes - begin);
      const auto actor = static_cast<ActorId>(tick);  // all different: nothing replaces anything
      const int kind = random() % 8;
      if (kind == 0) {
        shadow.clear({begin, end});
      } else if (kind < 4) {
        shadow.set({begin, end}, {.end = end, .write = {actor, tick, operation}, .reads = {}, .released = {}});
      } else {
        shadow.add_read({begin, end}, {actor, tick, operation}, {});
      }
      for (std::uintptr_t b = begin; b < end; ++b) {
        if (kind < 4) {
          write[b] = kind == 0 ? 0 : tick;
          reads[b].clear();
        } else {
          reads[b].insert(tick);
        }
      }
    }
    for (std::uintptr_t b = 0; b < kBytes; ++b) {
      std::uint64_t last = 0;
      std::set<std::uint64_t> since;
      shadow.visit({b, b + 1}, [&](ByteRun part, const ShadowMemory::Cell& cell) {
        CHECK(part.begin == b);
        CHECK(part.end == b + 1);
        last = cell.write.tick;
        for (const Access& read : cell.reads) since.insert(read.tick);
      });
      REQUIRE(last == write[b]);
      REQUIRE(since == reads[b]);
    }
  }
}
