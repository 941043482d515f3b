// Copies along a chain of devices: each device passes on what it has received, piece by piece, so that all links of the
// chain are busy at once and a further device costs the time of a piece. Private to the library.
#pragma once

#include <cstddef>

#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::detail {

// True where `copy_on` takes copies from `source` to `destination`: two devices of one kind.
bool chainable(Device source, Device destination);

// Of how many bytes, whole units of 256, the pieces are in which `bytes` go over `hops` links one after the other, of
// which there are `most_pieces` at most. Short pieces fill the chain soon, long ones start fewer copies: of k pieces
// the last one arrives after (k + hops - 1) times what a piece takes, so the best k grows with the root of bytes and
// hops. A function of the three alone.
std::size_t chain_piece_bytes(std::size_t bytes, std::size_t hops, std::size_t most_pieces = 32);

// Of how many bytes, whole units of 256, each of `pieces` pieces of `bytes` is; the last one may be shorter.
std::size_t piece_of(std::size_t bytes, std::size_t pieces);

// Enqueues a copy on `stream`, which is of the destination's device, and orders it with nothing else: the caller lets
// `stream` wait for who writes the source and who uses the destination, and lets those who come after wait for it.
// Where the devices do not reach each other the copy goes through host memory. The first copy between two devices tries
// the way (peer_copies). When this throws, the caller settles `stream`: copies that are on it may still run.
void copy_on(const Stream& stream, const CopyArgs& args, Place place = {__builtin_FILE(), __builtin_LINE()});

}  // namespace lockstep::detail
