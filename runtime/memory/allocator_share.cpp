// The caching allocator where there is no new memory: blocks of one class serve others. A larger free block is cut in
// two; free blocks that lie side by side become one. Both only among what is free in the order of the stream that asks,
// or to anybody.
#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator_state.h"
#include "lockstep/runtime/memory/memory_sharing.h"

namespace lockstep {
namespace detail {
namespace {

// A rest that is smaller stays with its block: crumbs of large segments serve nobody, and keep blocks from joining.
std::size_t least_rest(const Segment& segment) {
  return segment.bytes > kSegmentBytes ? class_bytes(kLargestCarvedClass + 1) : kGranuleBytes;
}

bool follows(const MemoryBlock& block, const MemoryBlock& before) {
  return block.segment == before.segment && static_cast<std::byte*>(before.data) + before.extent == block.data;
}

}  // namespace

bool DeviceAllocator::may_share(std::size_t bytes) const {
  const std::size_t most = std::max({most_in_use_bytes_, peak_in_use_bytes_, in_use_bytes_ + bytes});
  return static_cast<double>(raw_bytes_) >= sharing_ * static_cast<double>(most);
}

void DeviceAllocator::set_sharing(double multiple) {
  const Lock lock(mutex_);
  sharing_ = multiple;
}

MemoryBlock* DeviceAllocator::share(StreamState& stream, int bin, std::size_t largest_segment) {
  for (int larger = bin; larger < kSizeClasses; ++larger) {
    for (StreamState* owner : {&stream, &ownerless_}) {
      for (MemoryBlock** link = &owner->bins[larger]; *link; link = &(*link)->next) {
        MemoryBlock* const block = *link;
        if (block->segment->bytes > largest_segment) continue;
        *link = block->next;
        cut(block, bin);
        block->home = &stream;
        return block;
      }
    }
  }
  try {
    return join(stream, bin, largest_segment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The block becomes one of the class. The rest is free, in the same order as the block was.
void DeviceAllocator::cut(MemoryBlock* block, int bin) {
  const std::size_t kept = class_bytes(bin), rest = block->extent - kept;
  MemoryBlock* piece = nullptr;
  if (rest >= least_rest(*block->segment)) {
    try {
      piece = take_spare();
    } catch (const std::bad_alloc&) {  // it stays whole
    }
  }
  if (piece) {
    *piece = *block;
    piece->data = static_cast<std::byte*>(block->data) + kept;
    piece->extent = rest;
    piece->bin = static_cast<std::uint8_t>(fitting_class(rest));
    piece->bytes = class_bytes(piece->bin);
    put_back(piece);
    ++block->segment->blocks;
    block->extent = kept;
  }
  block->bin = static_cast<std::uint8_t>(fitting_class(block->extent));
  block->bytes = class_bytes(block->bin);
}

// The shortest row of free neighbours that is long enough becomes one block.
MemoryBlock* DeviceAllocator::join(StreamState& stream, int bin, std::size_t largest_segment) {
  const std::size_t wanted = class_bytes(bin);
  std::vector<MemoryBlock*> free;
  for (StreamState* owner : {&stream, &ownerless_}) {
    for (MemoryBlock* block : owner->bins) {
      for (; block; block = block->next) {
        if (block->segment->bytes <= largest_segment && block->segment->bytes >= wanted) free.push_back(block);
      }
    }
  }
  std::sort(free.begin(), free.end(),
            [](const MemoryBlock* a, const MemoryBlock* b) { return std::less<>()(a->data, b->data); });
  std::span<MemoryBlock*> row;
  std::size_t row_bytes = 0;
  for (std::size_t begin = 0, end; begin < free.size(); begin = end) {
    std::size_t bytes = 0;
    for (end = begin; end < free.size() && (end == begin || follows(*free[end], *free[end - 1])); ++end)
      bytes += free[end]->extent;
    if (bytes < wanted || (!row.empty() && bytes >= row_bytes)) continue;
    row = std::span(free).subspan(begin, end - begin);
    row_bytes = bytes;
  }
  if (row.empty()) return nullptr;

  MemoryBlock* const first = row.front();
  const MemoryBlock* const last = row.back();
  for (StreamState* owner : {&stream, &ownerless_}) {
    for (MemoryBlock*& bin_of_owner : owner->bins) {
      for (MemoryBlock** link = &bin_of_owner; *link;) {
        const bool inside = std::less_equal<>()(first->data, (*link)->data) &&  //
                            std::less_equal<>()((*link)->data, last->data);
        if (inside)
          *link = (*link)->next;
        else
          link = &(*link)->next;
      }
    }
  }
  for (MemoryBlock* block : row.subspan(1)) {
    block->next = std::exchange(spare_, block);
    --first->segment->blocks;
  }
  first->extent = row_bytes;
  first->home = &stream;
  cut(first, bin);
  return first;
}

}  // namespace detail

void set_memory_sharing(Device device, double multiple) {
  LOCKSTEP_CHECK(multiple >= 0, "[set_memory_sharing] expected a multiple of 0 or more for ", device, ", got ",
                 multiple);
  detail::DeviceAllocator::of(device).set_sharing(multiple);
}

}  // namespace lockstep
