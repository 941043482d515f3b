#include "lockstep/parallel/ddp/bucket.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/alignment.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

std::vector<std::vector<int>> assign_buckets(std::span<const BucketEntry> entries, std::span<const int> order,
                                             std::span<const std::size_t> limits_bytes) {
  LOCKSTEP_CHECK(!limits_bytes.empty(), "[assign_buckets] expected at least one limit, got none");
  struct Open {
    int bucket = -1;
    std::size_t bytes = 0, closed = 0;
  };
  std::map<std::pair<DType, int>, Open> open;
  std::vector<std::vector<int>> buckets;
  for (const int index : order) {
    const BucketEntry& entry = entries[static_cast<std::size_t>(index)];
    if (entry.sparse) {
      buckets.push_back({index});
      continue;
    }
    Open& current = open[{entry.dtype, entry.device}];
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

Bucket::Bucket(std::vector<Slot> slots, Place gradients, Place reduced, bool sparse)
    : slots_(std::move(slots)), place_(gradients), sparse_(sparse) {
  // The same offsets in both dtypes, aligned in the narrower one.
  const auto unit =
      static_cast<std::int64_t>(detail::kMemoryAlignment / std::min(size_of(gradients.dtype), size_of(reduced.dtype)));
  for (Slot& slot : slots_) {
    slot.offset = (count_ + unit - 1) / unit * unit;
    count_ = slot.offset + element_count(slot.shape);
  }
  if (sparse_) return;
  flat_ = empty({count_}, {.dtype = reduced.dtype, .device = reduced.device});
  parts_ = parts_of(flat_);
  if (gradients == reduced) {
    gradients_ = parts_;
  } else {
    held_ = empty({count_}, {.dtype = gradients.dtype, .device = gradients.device});
    gradients_ = parts_of(held_);
  }
  std::int64_t end = 0;
  for (const Slot& slot : slots_) {
    Gap& gap = gaps_.emplace_back();
    if (slot.offset > end) gap.elements = piece_of(apart() ? held_ : flat_, end, {slot.offset - end});
    end = slot.offset + element_count(slot.shape);
  }
}

std::size_t Bucket::bytes() const {
  std::int64_t count = 0;
  for (const Slot& slot : slots_) count += element_count(slot.shape);
  return static_cast<std::size_t>(count) * size_of(place_.dtype);
}

// With a storage of its own: a write to one gradient is not a write to the others.
Tensor Bucket::piece_of(const Tensor& flat, std::int64_t offset, const Shape& shape, MemoryFormat format) {
  const std::size_t element_bytes = size_of(flat.dtype());
  auto piece = Storage::slice(flat.storage(), static_cast<std::size_t>(offset) * element_bytes,
                              static_cast<std::size_t>(element_count(shape)) * element_bytes);
  return Tensor::over(std::move(piece), flat.dtype(), shape, format_strides(shape, format));
}

std::vector<Tensor> Bucket::parts_of(const Tensor& flat) const {
  std::vector<Tensor> parts;
  for (const Slot& slot : slots_) parts.push_back(piece_of(flat, slot.offset, slot.shape, slot.format));
  return parts;
}

void Bucket::fill_gap(std::size_t i, bool after_hook) {
  Gap& gap = gaps_[i];
  if (!gap.elements.defined() || (gap.filled && !after_hook)) return;
  gap.elements.zero_();
  gap.filled = true;
}

void Bucket::send() {
  if (apart()) flat_.copy_(held_);
}

void Bucket::receive() {
  if (apart()) held_.copy_(flat_);
}

Bucket Bucket::zeros() const {
  Bucket empty_one = *this;
  empty_one.gradients_.clear();
  empty_one.held_ = Tensor();
  empty_one.gaps_.clear();
  if (sparse_) return empty_one;
  empty_one.flat_ = zeros_like(flat_);
  empty_one.parts_ = empty_one.parts_of(empty_one.flat_);
  return empty_one;
}

}  // namespace lockstep
