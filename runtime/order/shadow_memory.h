// Who wrote each byte last and who has read it since. Private to the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/runtime/order/byte_runs.h"
#include "lockstep/runtime/order/vector_clock.h"

namespace lockstep::detail {

// What a report says about an operation.
struct Operation {
  const char* name = "";
  Place place;
  ActorId actor = 0;   // the stream it is on, or the host thread for work that runs at once
  ActorId thread = 0;  // the host thread that enqueued it
};

struct Access {
  ActorId actor = 0;
  std::uint64_t tick = 0;
  std::shared_ptr<const Operation> operation;  // null: no access
};

class ShadowMemory {
 public:
  struct Cell {
    std::uintptr_t end;
    Access write;
    std::vector<Access> reads;                  // since, at most one per actor
    std::shared_ptr<const Operation> released;  // the memory is the allocator's until it hands it out again
  };

  // Calls visit(part, cell) for the part of every cell that lies in the run.
  template <class Visit>
  void visit(ByteRun run, Visit visit) const {
    for (auto at = first_after(run.begin); at != cells_.end() && at->first < run.end; ++at) {
      const ByteRun part{std::max(run.begin, at->first), std::min(run.end, at->second.end)};
      visit(part, at->second);
    }
  }

  // Replaces what is known about the run.
  void set(ByteRun run, Cell cell);
  void clear(ByteRun run);
  // `known` is the reader's: earlier reads that it knows of are implied by this one.
  void add_read(ByteRun run, const Access& read, const VectorClock& known);
  // Forgets the accesses for which over(access) is true.
  template <class Over>
  void forget(ByteRun run, Over over) {
    split(run.begin);
    split(run.end);
    for (auto at = cells_.lower_bound(run.begin); at != cells_.end() && at->first < run.end; ++at) {
      std::erase_if(at->second.reads, over);
      if (at->second.write.operation && over(at->second.write)) at->second.write = {};
    }
  }

 private:
  using Cells = std::map<std::uintptr_t, Cell>;

  // The first cell that ends behind `address`.
  Cells::const_iterator first_after(std::uintptr_t address) const;
  // Makes no cell reach across `address`.
  void split(std::uintptr_t address);

  Cells cells_;  // by where they begin; they do not overlap
};

}  // namespace lockstep::detail
