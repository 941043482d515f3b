// The tensors of a checkpoint as they are at one point of the streams, in host memory. Private to the library.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/checkpoint/checkpoint.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

// Throws InvalidArgument, which names the tensor, for what cannot be saved.
void check_entries(const std::vector<CheckpointEntry>& entries);

// Used by one thread at a time: the next snapshot comes when the one before it has been written.
class Snapshot {
 public:
  struct Piece {
    std::string name;
    DType dtype;
    Shape shape;  // of what is here
    std::optional<TensorShard> shard;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  Snapshot() = default;
  Snapshot(const Snapshot&) = delete;
  ~Snapshot();

  // Enqueues the copies on the current streams of the tensors' devices, into pinned memory: what is on the streams
  // comes before, what is enqueued later after them. Tensors on cpu are copied at once. Blocks for nothing else.
  void take(const std::vector<CheckpointEntry>& entries, bool with_replicated);
  // Until the copies are there. Throws what the streams threw, TimeoutError at the deadline.
  void await(Deadline deadline);
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    Event copied;
  };
  void reserve(Device device, std::size_t bytes);

  std::map<int, std::pair<Device, Buffer>> buffers_;  // by type and number of the device
  std::vector<Piece> pieces_;
};

}  // namespace lockstep::detail
