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

// Its pieces are copied in the order in which a forward needs them, on one stream for each lane (runtime/topology.h):
// who has waited for one has waited for those before it on its lane. "The first n" are the pieces, of all lanes, that
// have to be there for a slot.
class SlotRefresh {
 public:
  // Marks the next piece, whose copy is on `copies` now, the stream of its lane.
  void arrives(const Stream& copies, std::size_t lane = 0);
  std::size_t pieces() const { return pieces_.size(); }
  const Event& piece(std::size_t index) const { return *pieces_[index].arrived; }
  std::shared_ptr<const Event> share_piece(std::size_t index) const { return pieces_[index].arrived; }

  // What `stream` does from now on comes after the first n pieces. No event call where it has waited for them before.
  void await(const Stream& stream, std::size_t n);
  // Whether the device failed to copy the first n; asks the backend until they are known to have arrived.
  bool failed(std::size_t n);
  bool known(std::size_t n) const { return done_.load(std::memory_order_acquire) >= n; }  // to have arrived
  // What the copies threw, where failed(n).
  void throw_failure(std::size_t n) const;

 private:
  struct Waited {
    const detail::StreamBody* stream;
    std::size_t pieces;
  };

  struct Piece {
    std::shared_ptr<Event> arrived;
    std::size_t lane;
  };
  // Calls f(event) for the last of the pieces from `begin` to `end` on each lane, until f returns false.
  template <class F>
  void each_lane(std::size_t begin, std::size_t end, F f) const;

  std::vector<Piece> pieces_;         // all of them before anybody else knows of the refresh
  std::size_t lanes_ = 0;             // that they are on
  std::atomic<std::size_t> done_{0};  // pieces that are known to have arrived
  std::mutex mutex_;                  // waited_
  std::vector<Waited> waited_;
};

}  // namespace lockstep
