// One refresh of the slots on a device: which part of it has arrived, and who has waited for how much. Private to the
// library.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

// Its pieces are copied one after the other on one stream, in the order in which a forward needs them: who has waited
// for one has waited for those before it. "The first n" are the pieces that have to be there for a slot.
class SlotRefresh {
 public:
  // Marks the next piece, whose copy is on `copies` now.
  void arrives(const Stream& copies);
  std::size_t pieces() const { return arrived_.size(); }
  const Event& piece(std::size_t index) const { return *arrived_[index]; }
  std::shared_ptr<const Event> share_piece(std::size_t index) const { return arrived_[index]; }

  // What `stream` does from now on comes after the first n pieces. No event call where it has waited for them before.
  void await(const Stream& stream, std::size_t n);
  // Whether the device failed to copy the first n; asks the backend until they are known to have arrived.
  bool failed(std::size_t n);
  bool known(std::size_t n) const { return done_.load(std::memory_order_acquire) >= n; }  // to have arrived

 private:
  struct Waited {
    const detail::StreamBody* stream;
    std::size_t pieces;
  };

  std::vector<std::shared_ptr<Event>> arrived_;  // all of them before anybody else knows of the refresh
  std::atomic<std::size_t> done_{0};             // pieces that are known to have arrived
  std::mutex mutex_;                             // waited_
  std::vector<Waited> waited_;
};

}  // namespace lockstep
