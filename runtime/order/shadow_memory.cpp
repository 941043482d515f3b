#include "lockstep/runtime/order/shadow_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep::detail {

ShadowMemory::Cells::const_iterator ShadowMemory::first_after(std::uintptr_t address) const {
  auto at = cells_.upper_bound(address);
  if (at != cells_.begin() && std::prev(at)->second.end > address) --at;
  return at;
}

void ShadowMemory::split(std::uintptr_t address) {
  const auto at = cells_.lower_bound(address);
  if (at == cells_.begin()) return;
  Cell& before = std::prev(at)->second;
  if (before.end <= address) return;
  Cell rest = before;
  before.end = address;
  cells_.emplace_hint(at, address, std::move(rest));
}

void ShadowMemory::clear(ByteRun run) {
  split(run.begin);
  split(run.end);
  cells_.erase(cells_.lower_bound(run.begin), cells_.lower_bound(run.end));
}

void ShadowMemory::set(ByteRun run, Cell cell) {
  clear(run);
  cell.end = run.end;
  cells_.emplace(run.begin, std::move(cell));
}

void ShadowMemory::add_read(ByteRun run, const Access& read, const VectorClock& known) {
  split(run.begin);
  split(run.end);
  std::uintptr_t from = run.begin;
  auto at = cells_.lower_bound(run.begin);
  while (from < run.end) {
    if (at == cells_.end() || at->first > from) {  // nothing known here yet
      const std::uintptr_t to = at == cells_.end() ? run.end : std::min(run.end, at->first);
      at = std::next(cells_.emplace_hint(at, from, Cell{.end = to, .write = {}, .reads = {read}, .released = {}}));
      from = to;
      continue;
    }
    std::vector<Access>& reads = at->second.reads;
    std::erase_if(reads, [&](const Access& earlier) {
      return earlier.actor == read.actor || known[earlier.actor] >= earlier.tick;
    });
    reads.push_back(read);
    from = at->second.end;
    ++at;
  }
}

}  // namespace lockstep::detail
