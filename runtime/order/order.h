// The order checker of host mode strict: it knows which work the program has ordered (streams run in order, events,
// host waits) and what memory each operation reads and writes, and throws RaceError at the first operation that is
// enqueued without being ordered after one it conflicts with. It judges what the program declared, not what happened:
// the answer does not depend on how the threads were scheduled.
//
// Kernels and copies are reported by Lockstep. Work that goes to a stream as a bare task (Stream::enqueue) is not known
// to it unless declare() (runtime/stream/declare.h) says what the task touches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// Where an operation was enqueued: `Place::here()` as a default argument is the caller's place.
struct Place {
  const char* file = nullptr;
  int line = 0;
};

// Memory that an operation uses: `sizes` elements of `element_bytes` each, `byte_strides` apart. A stride of 0 repeats;
// strides are not negative.
struct MemoryUse {
  static constexpr int kMaxRank = 8;

  const void* data = nullptr;
  Device device;
  bool reads = false, writes = false;
  std::size_t element_bytes = 1;
  int rank = 0;
  std::int64_t sizes[kMaxRank] = {};
  std::int64_t byte_strides[kMaxRank] = {};

  static MemoryUse read(const void* data, std::size_t bytes, Device device) {
    return {data, device, true, false, bytes};
  }
  static MemoryUse write(const void* data, std::size_t bytes, Device device) {
    return {data, device, false, true, bytes};
  }
};

// Host threads know of each other's waits when they hand over work through Lockstep (device threads, joins,
// rendezvous, cpu events) or when one starts or ends. For other ways: what this thread knows now, whoever takes over at
// the same address knows from then on. An object that may lie where an earlier one lay forgets that one's first: by
// chance they would have handed over to each other.
LOCKSTEP_API void hand_over(const void* address) noexcept;
LOCKSTEP_API void take_over(const void* address) noexcept;
LOCKSTEP_API void forget_hand_overs(const void* address) noexcept;

struct OrderStats {
  std::uint64_t operations = 0;    // checked since the start
  std::uint64_t skipped_uses = 0;  // with too many separate ranges to follow: not checked
  // Conflicts that were in order only if the host threads had handed over in a way the checker does not know; they are
  // not reported as races.
  std::uint64_t assumed_handovers = 0;
};
LOCKSTEP_API OrderStats order_stats();

}  // namespace lockstep
