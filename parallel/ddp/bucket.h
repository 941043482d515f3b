// Buckets: gradients of several parameters in one piece of memory, reduced by one collective.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// What decides into which bucket a parameter goes.
struct BucketEntry {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  bool sparse = false;  // gets rows as its gradient: a bucket by itself
};

// Divides entries 0, 1, …, visited in the order `order`, into buckets of one dtype. A bucket is closed when it has
// reached its limit, so it may be larger by one entry; the n-th bucket of a dtype has the n-th limit, the last limit
// repeats. Buckets are numbered as they are opened. The rule is that of PyTorch's compute_bucket_assignment_by_size.
LOCKSTEP_API std::vector<std::vector<int>> assign_buckets(std::span<const BucketEntry> entries,
                                                          std::span<const int> order,
                                                          std::span<const std::size_t> limits_bytes);

// The gradients of one bucket, one after another in a flat tensor.
class LOCKSTEP_API Bucket {
 public:
  struct Slot {
    int parameter;  // its number in the reducer
    Shape shape;
    std::int64_t offset;  // elements into flat()
  };
  // Not initialised. A bucket of a sparse parameter has no memory.
  Bucket(std::vector<Slot> slots, DType dtype, Device device, bool sparse);

  const std::vector<Slot>& slots() const { return slots_; }
  bool sparse() const { return sparse_; }
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }
  const Tensor& flat() const { return flat_; }
  // The gradient of the i-th slot: part of flat(), with a version of its own.
  const Tensor& gradient(std::size_t i) const { return gradients_[i]; }

 private:
  std::vector<Slot> slots_;
  DType dtype_;
  bool sparse_;
  std::int64_t count_ = 0;
  Tensor flat_;
  std::vector<Tensor> gradients_;
};

}  // namespace lockstep
