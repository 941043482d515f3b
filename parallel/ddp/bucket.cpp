#include "lockstep/parallel/ddp/bucket.h"

#include <algorithm>
#include <map>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

std::vector<std::vector<int>> assign_buckets(std::span<const BucketEntry> entries, std::span<const int> order,
                                             std::span<const std::size_t> limits_bytes) {
  LOCKSTEP_CHECK(!limits_bytes.empty(), "[assign_buckets] expected at least one limit, got none");
  struct Open {
    int bucket = -1;
    std::size_t bytes = 0, closed = 0;
  };
  std::map<DType, Open> open;
  std::vector<std::vector<int>> buckets;
  for (const int index : order) {
    const BucketEntry& entry = entries[static_cast<std::size_t>(index)];
    if (entry.sparse) {
      buckets.push_back({index});
      continue;
    }
    Open& current = open[entry.dtype];
    if (current.bucket < 0) {
      current.bucket = static_cast<int>(buckets.size());
      buckets.emplace_back();
    }
    buckets[static_cast<std::size_t>(current.bucket)].push_back(index);
    current.bytes += entry.bytes;
    if (current.bytes >= limits_bytes[std::min(current.closed, limits_bytes.size() - 1)]) {
      current = {.closed = current.closed + 1};
    }
  }
  return buckets;
}

Bucket::Bucket(std::vector<Slot> slots, DType dtype, Device device, bool sparse)
    : slots_(std::move(slots)), dtype_(dtype), sparse_(sparse) {
  for (Slot& slot : slots_) {
    slot.offset = count_;
    count_ += element_count(slot.shape);
  }
  if (sparse_) return;
  flat_ = empty({count_}, {.dtype = dtype, .device = device});
  for (const Slot& slot : slots_) {
    const std::size_t element_bytes = size_of(dtype);
    // A storage of its own: a write to one gradient is not a write to the others.
    auto part = Storage::slice(flat_.storage(), static_cast<std::size_t>(slot.offset) * element_bytes,
                               static_cast<std::size_t>(element_count(slot.shape)) * element_bytes);
    gradients_.push_back(Tensor::over(std::move(part), dtype, slot.shape, contiguous_strides(slot.shape)));
  }
}

}  // namespace lockstep
