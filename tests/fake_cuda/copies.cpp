// Copies and fills. The bytes of a copy are there when it is through and not before; its source is read early or late,
// by seed.
#include <cstring>
#include <memory>
#include <thread>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

struct Side {
  void* memory;
  int device;  // or kHostMemory
};

bool loses(const State& machine, int from, int to) {
  if (from == kHostMemory || to == kHostMemory || from == to) return false;
  const auto at = [](int device) { return static_cast<std::size_t>(device); };
  if (!machine.devices[at(from)].peers[at(to)] && !machine.devices[at(to)].peers[at(from)]) return false;
  for (const auto& [a, b] : machine.options.lossy_peer) {
    if (a == from && b == to) return true;
  }
  return false;
}

void move_bytes(void* to, const void* from, std::size_t bytes, bool early) {
  if (!early) {
    std::memmove(to, from, bytes);
    return;
  }
  const std::unique_ptr<std::byte[]> in_flight(new std::byte[bytes]);
  std::memcpy(in_flight.get(), from, bytes);
  std::this_thread::yield();
  std::memcpy(to, in_flight.get(), bytes);
}

Device name_of_side(int device) { return device == kHostMemory ? Device::cpu() : Device::cuda(device); }

// A device that copies must reach both sides: its own, the host's, or a peer's. `by_peer_copy`: the driver finds a way.
bool reachable(const Call& call, int stream_device, const Side& side, bool by_peer_copy, const char* role) {
  if (side.device == kHostMemory || side.device == stream_device || by_peer_copy) return true;
  if (const auto* piece = call.machine.piece_at(side.memory); piece->second.pool) {
    return check_pool_access(call, piece->second, stream_device, role);
  }
  const DeviceState& device = call.machine.devices[static_cast<std::size_t>(stream_device)];
  if (device.peers[static_cast<std::size_t>(side.device)]) return true;
  (void)call.fail(Rule::foreign_memory,
                  lockstep::cat(role, " is memory of device ", side.device, ", the stream is device ", stream_device,
                                "'s, which has no peer access to it"));
  return false;
}

cudaError_t enqueue_copy(Call& call, Side to, Side from, std::size_t bytes, cudaStream_t handle, bool by_peer_copy) {
  State& machine = call.machine;
  std::unique_lock lock(machine.mutex);
  Stream* stream = find_stream(call, handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t broken = machine.broken_by(stream->device); broken != cudaSuccess) return broken;
  if (!check_memory(call, to.memory, bytes, to.device, "the destination") ||
      !check_memory(call, from.memory, bytes, from.device, "the source") ||
      !reachable(call, stream->device, to, by_peer_copy, "the destination") ||
      !reachable(call, stream->device, from, by_peer_copy, "the source")) {
    return cudaErrorInvalidValue;
  }
  for (const Side& side : {to, from}) {
    if (side.device == kHostMemory) continue;
    if (!by_peer_copy && machine.piece_at(side.memory)->second.pool && call.thread.current != stream->device) {
      return call.fail(Rule::wrong_device,
                       lockstep::cat("memory of a pool is copied on a stream of device ", stream->device,
                                     " with device ", call.thread.current, " current"));
    }
    make_context(call, side.device);
  }
  const bool pageable = (to.device == kHostMemory && !machine.piece_at(to.memory)) ||
                        (from.device == kHostMemory && !machine.piece_at(from.memory));
  if (pageable && !machine.options.allow_pageable) {
    (void)call.fail(Rule::pageable_copy, "the host side is pageable memory: the call blocks the host");
  }
  judge(call, [&](OrderChecker& checker) {
    checker.copy(order_handle(handle),
                 {to.memory, name_of_side(to.device), from.memory, name_of_side(from.device), bytes});
  });
  const bool early = ((machine.options.seed ^ machine.copies_made++) & 1) != 0;
  const bool writes = !loses(machine, from.device, to.device);
  const cudaError_t enqueued =
      put(call, handle, *stream, [&machine, device = stream->device, to, from, bytes, early, writes] {
        if (writes && machine.broken_by(device) == cudaSuccess) move_bytes(to.memory, from.memory, bytes, early);
      });
  if (!pageable || enqueued != cudaSuccess || capture_of(machine, handle)) return enqueued;
  auto done = std::make_shared<Completion>();
  if (machine.checker) done->order = machine.checker->record(order_handle(handle));
  stream->host->record(done);
  lock.unlock();
  (void)done->wait(lockstep::Deadline::after(lockstep::kDefaultTimeout));
  judge(call, [&](OrderChecker& checker) { checker.host_wait(done->order); });
  return cudaSuccess;
}

int side_of(Call& call, const void* memory) {
  std::lock_guard lock(call.machine.mutex);
  const auto* found = call.machine.piece_at(memory);
  return !found || found->second.pinned ? kHostMemory : found->second.device;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return run_call("cudaMemcpyAsync", context, [&](Call& call) {
    call.stream = stream;
    const Side destination{to, side_of(call, to)}, source{const_cast<void*>(from), side_of(call, from)};
    const bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
    const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
    if (kind != cudaMemcpyDefault &&
        (to_host != (destination.device == kHostMemory) || from_host != (source.device == kHostMemory))) {
      return call.fail(Rule::foreign_memory, "the kind of copy says otherwise than the memory");
    }
    return enqueue_copy(call, destination, source, bytes, stream, false);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                cudaStream_t stream) {
  return run_call("cudaMemcpyPeerAsync", context, [&](Call& call) {
    const int count = call.machine.options.devices;
    if (to_device < 0 || to_device >= count || from_device < 0 || from_device >= count) return cudaErrorInvalidDevice;
    return enqueue_copy(call, {to, to_device}, {const_cast<void*>(from), from_device}, bytes, stream, true);
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t handle) {
  return run_call("cudaMemsetAsync", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Stream* stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (const cudaError_t broken = call.machine.broken_by(stream->device); broken != cudaSuccess) return broken;
    if (!check_operand(call, memory, bytes, stream->device, "the memory")) return cudaErrorInvalidValue;
    judge(call, [&](OrderChecker& checker) {
      checker.fill(order_handle(handle), Device::cuda(stream->device), memory, bytes);
    });
    return put(call, handle, *stream, [&machine = call.machine, device = stream->device, memory, value, bytes] {
      if (machine.broken_by(device) == cudaSuccess) std::memset(memory, value, bytes);
    });
  });
}

}  // extern "C"
