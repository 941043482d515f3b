#include "lockstep/runtime/copy/copy.h"

#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/copy/staging.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order_checker.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/stream_state.h"

namespace lockstep {
namespace {

bool in_host_memory(Device device) { return properties(device).host_memory; }

// The stream that carries a copy between two devices: that of the destination for copies into it, because a device is
// filled by one copy at a time. Plain memory has no engine of its own, and nobody else reaches the memory of a GPU: the
// source's for copies out of it then.
Stream carrier(const Stream& destination, const Stream& source) {
  const bool source_copies =
      destination.device().is_cpu() || (!in_host_memory(source.device()) && in_host_memory(destination.device()));
  return source_copies ? detail::copies_of(source, detail::CopyDirection::out) : detail::copies_of(destination);
}

// The side of a copy between the host and a GPU that is host memory; null for other copies.
const void* host_side(const CopyArgs& args) {
  const bool to_gpu = !in_host_memory(args.destination_device), from_gpu = !in_host_memory(args.source_device);
  return to_gpu == from_gpu ? nullptr : to_gpu ? args.source : args.destination;
}

// What has been enqueued of a copy that failed is nobody's: the memory on both sides may be given back at once.
void settle(const Stream& stream) noexcept { detail::settle(stream.backend(), stream.device(), stream.handle()); }

void enqueue_staged(const CopyArgs& args, const Stream& source_stream, const Stream& destination_stream,
                    const Stream& stream, Event& done) {
  const Stream out = detail::copies_of(source_stream, detail::CopyDirection::out);
  try {
    LOCKSTEP_EDGE(out.wait_for(source_stream));
    // It may have waited for who wrote the source; and each piece arrives after it has left, so after what is there.
    LOCKSTEP_EDGE(out.wait_for(destination_stream));
    detail::copy_staged(args, out, stream);
    LOCKSTEP_EDGE(done.record(out));
    LOCKSTEP_EDGE(destination_stream.wait_for(stream));
  } catch (...) {
    settle(out);
    settle(stream);
    throw;
  }
}

void enqueue_straight(const CopyArgs& args, const Stream& source_stream, const Stream& destination_stream,
                      const Stream& stream, Event& done) try {
  LOCKSTEP_EDGE(stream.wait_for(source_stream));
  LOCKSTEP_EDGE(stream.wait_for(destination_stream));
  if (const void* host_memory = host_side(args); host_memory && stream.backend().pageable(host_memory)) {
    if (!in_host_memory(args.source_device)) {
      detail::copy_to_pageable(args, stream);  // the copy is over, also for the source's stream
    } else {
      detail::copy_from_pageable(args, stream);
      LOCKSTEP_EDGE(destination_stream.wait_for(stream));
    }
    return;
  }
  stream.backend().copy(args, stream.handle());
  if (stream == source_stream && stream == destination_stream) return;

  LOCKSTEP_EDGE(done.record(stream));
  if (stream != destination_stream)
    LOCKSTEP_EDGE(destination_stream.wait(done));  // a stream of plain memory blocks here
} catch (...) {
  settle(stream);
  throw;
}

}  // namespace

void copy_bytes(const CopyArgs& args, const Stream& source_stream, const Stream& destination_stream, Place place) {
  const Event done = start_copy(args, source_stream, destination_stream, place);
  if (detail::current_capture && args.source_device.is_cpu()) return;  // pinned: who writes it comes after a replay
  try {
    LOCKSTEP_EDGE(source_stream.wait(done));
  } catch (...) {
    settle(destination_stream);  // which waits for the copy
    throw;
  }
}

Event start_copy(const CopyArgs& args, const Stream& source_stream, const Stream& destination_stream, Place place) {
  Event done;
  LOCKSTEP_CHECK(args.source_device == source_stream.device() && args.destination_device == destination_stream.device(),
                 "[copy_bytes] expected streams of ", args.source_device, " and ", args.destination_device,
                 ", got streams of ", source_stream.device(), " and ", destination_stream.device());
  if (args.bytes == 0) return done;
  if (detail::current_capture) [[unlikely]]
    detail::current_capture->check_copy(args);
  const bool one_device = args.source_device == args.destination_device;
  const detail::CopyPlaceScope reported_place(source_stream.checked() || destination_stream.checked(), place);
  const Stream stream = one_device ? destination_stream : carrier(destination_stream, source_stream);

  if (source_stream.synchronous() && destination_stream.synchronous() && stream.synchronous()) {
    stream.backend().copy(args, stream.handle());  // nothing is in flight, nothing needs an edge
    return done;
  }
  if (!one_device && args.source_device.type() == args.destination_device.type() &&
      !peer_copies(args.source_device, args.destination_device)) [[unlikely]] {
    enqueue_staged(args, source_stream, destination_stream, stream, done);
  } else {
    enqueue_straight(args, source_stream, destination_stream, stream, done);
  }
  return done;
}

}  // namespace lockstep
