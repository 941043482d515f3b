#include "lockstep/runtime/internal/staging.h"

#include <algorithm>
#include <mutex>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/edge.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kPieces = 4;  // one is filled while another is emptied, and two for the streams' unevenness

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
  static Ring* const rings = new Ring[kMaxDevices];
  return rings[ordinal(device)];
}

}  // namespace

void copy_staged(const CopyArgs& args, Stream& out, Stream& in) {
  Ring& ring = ring_into(args.destination_device);
  std::lock_guard lock(ring.mutex);
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
    in.backend().copy({destination, args.destination_device, piece.memory, Device::cpu(), bytes}, in.handle());
    LOCKSTEP_EDGE(piece.emptied.record(in));
  }
}

}  // namespace lockstep::detail
