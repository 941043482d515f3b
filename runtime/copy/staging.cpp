#include "lockstep/runtime/copy/staging.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/retained.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr int kPieces = 4;  // one is filled while another is emptied, and two for the streams' unevenness

// The pieces on their way into one device.
struct Ring {
  struct Piece {
    std::byte* memory = nullptr;
    Event filled, emptied;
  };
  std::mutex mutex;  // two copies must not mix their uses of a piece
  Piece pieces[kPieces];
  std::size_t next = 0;
};

Ring& ring_into(Device device) {
  static constinit PerDevice<Ring> rings;
  return rings[device];
}

// Pinned memory for copies between a device and pageable memory. Whoever has a piece has it alone, so that no lock is
// held while the host waits for it.
struct Piece {
  std::byte* memory = nullptr;
  Event used;                     // the last copy from or to it
  StreamHandle stream = nullptr;  // that it was on
};

struct PiecePool {
  std::mutex mutex;
  std::list<Piece> idle;  // the one that has rested longest in front

  static PiecePool& of(Device device) {
    static constinit PerDevice<PiecePool> pools;
    return pools[device];
  }
};

class TakenPiece {
 public:
  explicit TakenPiece(const Stream& stream) : pool_(PiecePool::of(stream.device())), piece_(take(pool_, stream)) {}
  TakenPiece(const TakenPiece&) = delete;
  ~TakenPiece() {
    std::lock_guard lock(pool_.mutex);
    pool_.idle.splice(pool_.idle.end(), piece_);
  }
  Piece* operator->() { return &piece_.front(); }

 private:
  // One whose copy is over, or one of the stream's own, which come after each other; never one that another stream has
  // yet to use, since that may wait for other ranks, and they for this stream.
  static std::list<Piece> take(PiecePool& pool, const Stream& stream) {
    std::list<Piece> taken;
    {
      std::lock_guard lock(pool.mutex);
      const auto is_own = [&stream](const Piece& each) { return each.stream == stream.handle(); };
      auto found = std::find_if(pool.idle.begin(), pool.idle.end(),
                                [](const Piece& each) { return each.used.progress() != Event::Progress::pending; });
      if (found == pool.idle.end() && std::count_if(pool.idle.begin(), pool.idle.end(), is_own) >= kPieces)
        found = std::find_if(pool.idle.begin(), pool.idle.end(), is_own);
      if (found != pool.idle.end()) taken.splice(taken.end(), pool.idle, found);
    }
    if (taken.empty()) taken.emplace_back();
    Piece& piece = taken.front();
    if (!piece.memory) piece.memory = static_cast<std::byte*>(stream.backend().allocate_pinned(kPieceBytes));
    if (!piece.memory) throw OutOfMemory(Device::cpu(), kPieceBytes, 0, 0);
    piece.stream = stream.handle();
    return taken;
  }

  PiecePool& pool_;
  std::list<Piece> piece_;  // one, which goes back without needing memory
};

}  // namespace

void copy_staged(const CopyArgs& args, const Stream& out, const Stream& in) {
  Ring& ring = ring_into(args.destination_device);
  std::unique_lock lock(ring.mutex);
  const RestWithout rest(lock);
  for (std::size_t done = 0; done < args.bytes; done += kPieceBytes) {
    const std::size_t bytes = std::min(kPieceBytes, args.bytes - done);
    Ring::Piece& piece = ring.pieces[ring.next++ % kPieces];
    if (!piece.memory) piece.memory = static_cast<std::byte*>(in.backend().allocate_pinned(kPieceBytes));
    if (!piece.memory) throw OutOfMemory(Device::cpu(), kPieceBytes, 0, 0);
    LOCKSTEP_EDGE(out.wait(piece.emptied));
    const auto* source = static_cast<const std::byte*>(args.source) + done;
    auto* destination = static_cast<std::byte*>(args.destination) + done;
    out.backend().copy({piece.memory, Device::cpu(), source, args.source_device, bytes}, out.handle());
    LOCKSTEP_EDGE(piece.filled.record(out));
    LOCKSTEP_EDGE(in.wait(piece.filled));
    try {
      in.backend().copy({destination, args.destination_device, piece.memory, Device::cpu(), bytes}, in.handle());
    } catch (...) {
      settle(out.backend(), out.device(), out.handle());  // whoever has the piece next does not wait for `out`
      throw;
    }
    LOCKSTEP_EDGE(piece.emptied.record(in));
  }
}

void copy_from_pageable(const CopyArgs& args, const Stream& stream) {
  for (std::size_t done = 0; done < args.bytes; done += kPieceBytes) {
    const std::size_t bytes = std::min(kPieceBytes, args.bytes - done);
    TakenPiece piece(stream);
    // That it has failed is for those to hear who used it.
    if (piece->used.progress() != Event::Progress::failed) {
      LOCKSTEP_EDGE(wait(piece->used, Deadline::after(kDefaultTimeout)));
    }
    std::memcpy(piece->memory, static_cast<const std::byte*>(args.source) + done, bytes);
    auto* destination = static_cast<std::byte*>(args.destination) + done;
    stream.backend().copy({destination, args.destination_device, piece->memory, Device::cpu(), bytes}, stream.handle());
    LOCKSTEP_EDGE(piece->used.record(stream));
  }
}

void copy_to_pageable(const CopyArgs& args, const Stream& stream) {
  struct Underway {
    std::unique_ptr<TakenPiece> piece;
    std::size_t at, bytes;
  };
  std::deque<Underway> underway;
  const auto arrive = [&] {
    Underway& first = underway.front();
    LOCKSTEP_EDGE(wait((*first.piece)->used, Deadline::after(kDefaultTimeout)));
    std::memcpy(static_cast<std::byte*>(args.destination) + first.at, (*first.piece)->memory, first.bytes);
    underway.pop_front();
  };
  for (std::size_t done = 0; done < args.bytes; done += kPieceBytes) {
    if (underway.size() == static_cast<std::size_t>(kPieces)) arrive();
    const std::size_t bytes = std::min(kPieceBytes, args.bytes - done);
    underway.push_back({std::make_unique<TakenPiece>(stream), done, bytes});
    Piece& piece = *underway.back().piece->operator->();
    const auto* source = static_cast<const std::byte*>(args.source) + done;
    stream.backend().copy({piece.memory, Device::cpu(), source, args.source_device, bytes}, stream.handle());
    LOCKSTEP_EDGE(piece.used.record(stream));
  }
  while (!underway.empty()) arrive();
}

Retained retained_staging(Device device) {
  Retained all;
  {
    Ring& ring = ring_into(device);
    std::lock_guard lock(ring.mutex);
    for (const Ring::Piece& piece : ring.pieces) {
      all.pinned += piece.memory != nullptr;
      all.events += piece.filled.recorded() + piece.emptied.recorded();
    }
  }
  PiecePool& pool = PiecePool::of(device);
  std::lock_guard lock(pool.mutex);
  for (const Piece& piece : pool.idle) {
    all.pinned += piece.memory != nullptr;
    all.events += piece.used.recorded();
  }
  return all;
}

}  // namespace lockstep::detail
