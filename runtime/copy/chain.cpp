#include "lockstep/runtime/copy/chain.h"

#include <algorithm>
#include <cmath>

#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/copy/staging.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kUnit = 256;
// What a link moves in the time that a piece costs besides, for each hop: to start a copy is a few microseconds, and
// the host makes a few calls for each hop. That is 200 KB over PCIe, 2 MB over NVLink, where the host hides most of it.
// Near the best the time hardly depends on it.
constexpr double kHopBytes = 288 << 10;

}  // namespace

bool chainable(Device source, Device destination) {
  return source != destination && source.type() == destination.type() && !source.is_cpu();
}

std::size_t piece_of(std::size_t bytes, std::size_t pieces) {
  const std::size_t piece = (bytes + pieces - 1) / pieces;
  return (piece + kUnit - 1) / kUnit * kUnit;
}

std::size_t chain_piece_bytes(std::size_t bytes, std::size_t hops, std::size_t most_pieces) {
  if (hops <= 1) return piece_of(bytes, 1);
  // The least of (pieces + hops - 1) (bytes / pieces + hops x kHopBytes), in units of what the link moves.
  const double per_piece = static_cast<double>(hops) * kHopBytes;
  const double best = std::sqrt(static_cast<double>(bytes) * static_cast<double>(hops - 1) / per_piece);
  return piece_of(bytes, std::clamp<std::size_t>(static_cast<std::size_t>(std::llround(best)), 1, most_pieces));
}

void copy_on(const Stream& stream, const CopyArgs& args, Place place) {
  if (args.bytes == 0) return;
  const CopyPlaceScope reported_place(stream.checked(), place);
  if (stream.synchronous() || peer_copies(args.source_device, args.destination_device)) {
    stream.backend().copy(args, stream.handle());
    return;
  }
  const Stream out = copies_of(current_stream(args.source_device), CopyDirection::out);
  try {
    LOCKSTEP_EDGE(out.wait_for(stream));  // and with it for what `stream` was made to wait for
    copy_staged(args, out, stream);
  } catch (...) {
    settle(out.backend(), out.device(), out.handle());
    throw;
  }
}

}  // namespace lockstep::detail
