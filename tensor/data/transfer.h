// Batches on their way to a device, on a stream of their own.
#pragma once

#include <mutex>
#include <vector>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

struct Retained;

class LOCKSTEP_API Transfer {
 public:
  // Throws InvalidArgument for a device that does not exist.
  explicit Transfer(Device device);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Replaces each cpu tensor by one on the device whose elements are there once the returned event is reached. The
  // elements are copied to pinned memory first, so the old tensors may go away at once, and the copies from there run
  // on this object's stream. Blocks only while pinned memory is scarce. May be called from any thread.
  Event send(const std::vector<Tensor*>& tensors);
  // Lets the current stream of the device wait for `sent`, and the memory of the tensors for that stream.
  void receive(const Event& sent, const std::vector<Tensor*>& tensors) const;

 private:
  Device device_;
  std::mutex mutex_;  // the workers take turns with the stream
  Stream stream_;
};

// Pinned memory that is kept for the batches to come, with its events (lockstep/runtime/retained.h).
Retained retained_transfers(Device device);

}  // namespace lockstep::detail
