// Copies between devices with the edges that order them.
#pragma once

#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

// Copies `args.bytes` contiguous bytes. Work already on `source_stream` comes before the copy (the source is written),
// work already on `destination_stream` too (its earlier readers are done), and later work on both comes after it.
// Between devices the copy runs on the stream of `destination_stream` for copies into it (of `source_stream` for copies
// out of it, when the destination is cpu): that of the device for its default stream, else one of its own, so that
// copies of different streams do not wait for each other, nor those of one stream in the two directions. Where two
// devices do not reach each other (peer.h) it takes a detour through host memory, out of the one and into the other;
// those into one device share four pieces of it. Does not block the host, except that a copy into cpu
// memory has finished when this returns, and that the first copy between two devices tries the way.
// The caller keeps both memories alive until the streams have passed it (record_use does that for blocks).
LOCKSTEP_API void copy_bytes(const CopyArgs& args, const Stream& source_stream, const Stream& destination_stream,
                             Place place = {__builtin_FILE(), __builtin_LINE()});

// As copy_bytes, but later work on `source_stream` does not come after the copy: the caller sees to that, with the
// event that is returned, before anybody writes the source or releases it. What is in order already has no event
// recorded.
LOCKSTEP_API Event start_copy(const CopyArgs& args, const Stream& source_stream, const Stream& destination_stream,
                              Place place = {__builtin_FILE(), __builtin_LINE()});

}  // namespace lockstep
