// Dividing tensors among devices: the part of scatter that does not depend on the type of the value they are in.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/scatter_policy.h"
#include "lockstep/tensor/nn/packed_sequence.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Copies out of tensors whose own streams do not wait for them yet, so that what comes next there need not. Until they
// do, the tensors' memory is kept, and nobody may write it.
class LOCKSTEP_API Departures {
 public:
  explicit Departures(Milliseconds timeout = kDefaultTimeout) : timeout_(timeout) {}
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;
  // Settles. Memory whose copy does not end in time is kept, and freed by a later scatter once the copy is over.
  ~Departures() {
    if (!copies_.empty()) abandon();
    free_late();
  }

  void add(Ref<Storage> storage, const Stream& stream, Event copied) {
    copies_.push_back({std::move(storage), &stream.body(), std::move(copied)});
  }
  // The streams wait; for plain memory the calling thread does, and throws what it is told then.
  void settle() {
    if (!copies_.empty()) wait_for_all();
  }

  // While it lives, scatters of this thread leave their copies to `departures`.
  class LOCKSTEP_API Scope {
   public:
    explicit Scope(Departures& departures);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    Departures* outer_;
  };

 private:
  struct Copy {
    Ref<Storage> storage;
    detail::StreamBody* stream;  // of the storage's device
    Event copied;
  };
  struct Late;
  void wait_for_all();
  void abandon() noexcept;
  static void free_late() noexcept;

  Milliseconds timeout_;
  std::vector<Copy> copies_;
};

// Pieces of `sizes[i]` elements along `dim` on `devices[i]`, in order; the sizes add up to the tensor's. A piece on
// the device where it already is, is a view, the others are copies, ordered on the current streams of both devices, and
// side by side. One graph node; its backward gathers, so that it can be differentiated any number of times.
LOCKSTEP_API std::vector<Tensor> scatter_tensor(const Tensor& source, std::span<const Device> devices,
                                                std::span<const std::int64_t> sizes, int dim);

// Bytes that scatter, replicate and gather have moved between devices in this thread so far.
LOCKSTEP_API std::uint64_t& moved_bytes();

// Throws InvalidArgument, naming `op`, for an empty list, a device that does not exist or one that comes twice.
LOCKSTEP_API void check_devices(const char* op, std::span<const Device> devices);

// What a scatter will do, found from the tensors in the value before anything is moved.
class LOCKSTEP_API ScatterPlan {
 public:
  // The span must outlive the plan.
  ScatterPlan(std::span<const Device> devices, std::int64_t dim, const ScatterPolicy& policy);

  // A tensor to be divided, which must outlive the plan. Throws InvalidArgument when it has no dimensions, unless the
  // one device is cpu, which takes it as it is.
  void add(const Tensor& tensor);
  // Sequences to be divided in the caller's order, whatever the dimension; they must outlive the plan, too.
  void add(const PackedSequence& sequences);
  // A container that is divided already, into `count` pieces for the first `count` devices. `samples`: how many each
  // piece has, where the container knows; tensors are divided alike then.
  void add_divided(std::size_t count, const std::vector<std::int64_t>& samples = {});

  // Divides the tensors. Afterwards take() gives their pieces. Throws InvalidArgument, before anything is moved, when
  // not all that was added gives the same pieces.
  void split();

  // Of each piece, after split(). Without tensors every device gets one.
  const std::vector<Device>& piece_devices() const { return piece_devices_; }
  std::vector<Tensor> take(std::size_t tensor) { return std::move(pieces_[tensor]); }
  Tensor take(std::size_t tensor, std::size_t piece) { return std::move(pieces_[tensor][piece]); }
  // `sequences`, which were added as number `tensor`, become those of a piece.
  void take(std::size_t tensor, std::size_t piece, PackedSequence& sequences);

 private:
  // In the order in which they were added: a tensor, sequences, or a container of so many parts.
  struct Added {
    const Tensor* tensor = nullptr;
    const PackedSequence* sequences = nullptr;
    std::size_t parts = 0;
    std::string describe() const;
  };
  struct Division {
    Added value;  // no container
    int dim = 0;
    std::vector<std::int64_t> sizes = {};  // one per piece
  };
  std::vector<Device> divide(Division& division) const;
  void decide();

  std::span<const Device> devices_;
  std::int64_t dim_;
  const ScatterPolicy& policy_;
  std::vector<Added> added_;
  std::vector<std::int64_t> samples_;
  bool whole_ = false;  // a container is a batch of one part
  std::vector<Division> divisions_;
  std::vector<Device> piece_devices_;
  std::vector<std::vector<Tensor>> pieces_;  // by tensor; the data of sequences is one
};

}  // namespace lockstep::detail
