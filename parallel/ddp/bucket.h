// Buckets: gradients of several parameters in one piece of memory, reduced by one collective.
//
// Each gradient begins at a multiple of 256 bytes, as tensors of their own do, so that kernels take it in whole vectors
// whatever stands before it. What lies between two of them is zero when the bucket is reduced.
//
// Gradients lie where their parameters do. Where the communicator is on another device, or they are to be reduced in
// another dtype, a bucket has a second piece of memory for that.
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
  int device = 0;       // number of its device among those of the module
};

// Divides entries 0, 1, …, visited in the order `order`, into buckets of one dtype and device. A bucket is closed when
// it has reached its limit, so it may be larger by one entry; the n-th bucket of a dtype has the n-th limit, the last
// limit repeats. Buckets are numbered as they are opened. The rule is that of PyTorch's
// compute_bucket_assignment_by_size.
LOCKSTEP_API std::vector<std::vector<int>> assign_buckets(std::span<const BucketEntry> entries,
                                                          std::span<const int> order,
                                                          std::span<const std::size_t> limits_bytes);

// The gradients of one bucket, one after another in a flat tensor, with gaps between them.
class LOCKSTEP_API Bucket {
 public:
  struct Slot {
    int parameter;  // its number in the reducer
    Shape shape;
    std::int64_t offset;  // elements into flat()
    MemoryFormat format = MemoryFormat::contiguous;
  };
  struct Place {
    DType dtype;
    Device device;
    bool operator==(const Place&) const = default;
  };
  // Not initialised. A bucket of a sparse parameter has no memory.
  Bucket(std::vector<Slot> slots, Place gradients, Place reduced, bool sparse);

  const std::vector<Slot>& slots() const { return slots_; }
  bool sparse() const { return sparse_; }
  const Place& place() const { return place_; }  // of the gradients
  // Of the gradients, without the gaps.
  std::size_t bytes() const;
  // The gradient of the i-th slot, with a version of its own.
  const Tensor& gradient(std::size_t i) const { return gradients_[i]; }
  // Zeros in the gap before the i-th slot, on the current stream: the first time, and again `after_hook`, which may
  // have written there. Whoever writes the gradient calls it, so that what waits for the one has waited for the other.
  void fill_gap(std::size_t i, bool after_hook);

  // What is reduced: the gradients themselves, or, when they lie apart from it, what send() has copied; receive()
  // copies back. Both use the current streams of the two devices.
  const Tensor& flat() const { return flat_; }
  const std::vector<Tensor>& parts() const { return parts_; }  // of flat(), by slot
  bool apart() const { return held_.defined(); }
  // The gradients one after another, where what is reduced has another dtype; else undefined.
  Tensor unrounded() const { return apart() && held_.dtype() != flat_.dtype() ? held_ : Tensor(); }
  void send();
  void receive();

  // Another one with memory of its own for flat(), all zeros, and without gradients.
  Bucket zeros() const;

 private:
  static Tensor piece_of(const Tensor& flat, std::int64_t offset, const Shape& shape,
                         MemoryFormat format = MemoryFormat::contiguous);
  std::vector<Tensor> parts_of(const Tensor& flat) const;

  std::vector<Slot> slots_;
  Place place_;
  bool sparse_;
  std::int64_t count_ = 0;
  Tensor flat_, held_;  // held_: the gradients, where they lie apart
  std::vector<Tensor> parts_, gradients_;
  struct Gap {
    Tensor elements;  // undefined where there is none
    bool filled = false;
  };
  std::vector<Gap> gaps_;  // by slot, before it
};

}  // namespace lockstep
