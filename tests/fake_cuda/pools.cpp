// Memory pools: memory in the order of streams, and who has access to it. Peer access between devices says nothing
// here.
#include <sys/mman.h>

#include <algorithm>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

bool exists(const State& machine, int device) { return device >= 0 && device < machine.options.devices; }

Pool* find_pool(const Call& call, const void* handle) {
  const auto found = call.machine.pools.find(handle);
  if (found != call.machine.pools.end() && !found->second.destroyed) return &found->second;
  const bool destroyed = found != call.machine.pools.end() || call.machine.dead.contains(handle);
  (void)call.fail(Rule::dead_handle, destroyed ? "the pool was destroyed" : "not a pool");
  return nullptr;
}

const void* make_pool(State& machine, int device, bool made) {
  const void* handle = new char;  // never given back: no two pools have the same handle
  Pool& pool = machine.pools[handle] = {.device = device, .made = made};
  pool.access[static_cast<std::size_t>(device)] = true;
  return handle;
}

const void* default_pool(State& machine, int device) {
  for (const auto& [handle, pool] : machine.pools) {
    if (!pool.made && pool.device == device) return handle;
  }
  return make_pool(machine, device, false);
}

void keep_at_most(State& machine, Pool& pool, std::uint64_t bytes) {
  const std::uint64_t kept = std::max(pool.used_bytes, std::min(pool.reserved_bytes, bytes));
  machine.devices[static_cast<std::size_t>(pool.device)].used_bytes -= pool.reserved_bytes - kept;
  pool.reserved_bytes = kept;
}

// The memory may be used by what comes after this in the stream's order: to the order checker a write.
cudaError_t take(Call& call, void** memory, std::size_t bytes, const void* handle, Pool& pool, cudaStream_t stream) {
  State& machine = call.machine;
  *memory = nullptr;
  if (bytes == 0) return cudaErrorInvalidValue;
  DeviceState& device = machine.devices[static_cast<std::size_t>(pool.device)];
  const std::uint64_t reserved = std::max(pool.reserved_bytes, pool.used_bytes + bytes);
  if (reserved - pool.reserved_bytes > device.memory_bytes - device.used_bytes) return cudaErrorMemoryAllocation;
  Piece piece{.bytes = bytes, .device = pool.device, .pool = handle};
  void* taken = map_memory(bytes, piece.mapped_bytes);
  if (!taken) return cudaErrorMemoryAllocation;
  make_context(call, pool.device);
  device.used_bytes += reserved - pool.reserved_bytes;
  pool.reserved_bytes = reserved;
  pool.used_bytes += bytes;
  pool.most_reserved_bytes = std::max(pool.most_reserved_bytes, pool.reserved_bytes);
  pool.most_used_bytes = std::max(pool.most_used_bytes, pool.used_bytes);
  machine.pieces[reinterpret_cast<std::uintptr_t>(taken)] = piece;
  judge(call, [&](OrderChecker& checker) {
    checker.add_memory(taken, bytes, Device::cuda(pool.device), true);
    const auto use = lockstep::MemoryUse::write(taken, bytes, Device::cuda(pool.device));
    checker.use(order_handle(stream), "cudaMallocAsync", std::span(&use, 1), {});
  });
  *memory = taken;
  return cudaSuccess;
}

// Later uses are refused from now on: nothing that is enqueued after the free can be ordered before it. Earlier ones
// must be ordered before it, as before a write.
cudaError_t give_back(Call& call, void* memory, cudaStream_t handle) {
  State& machine = call.machine;
  std::lock_guard lock(machine.mutex);
  Stream* stream = find_stream(call, handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  auto* found = machine.piece_at(memory);
  if (!found || found->first != reinterpret_cast<std::uintptr_t>(memory) || !found->second.pool) {
    return call.fail(Rule::foreign_memory, "the beginning of an allocation of a pool is expected");
  }
  Piece& piece = found->second;
  if (piece.freed) return call.fail(Rule::use_after_free, "it was freed before");
  judge(call, [&](OrderChecker& checker) {
    const auto use = lockstep::MemoryUse::write(memory, piece.bytes, Device::cuda(piece.device));
    checker.use(order_handle(handle), "cudaFreeAsync", std::span(&use, 1), {});
  });
  piece.freed = true;
  stream->host->run([&machine, memory, piece] {
    std::lock_guard guard(machine.mutex);
    // Its contents go. The addresses stay mapped: a use that nothing ordered was reported, and must not end the
    // program.
    madvise(memory, piece.mapped_bytes, MADV_DONTNEED);
    return_to_pool(machine, piece);
  });
  return cudaSuccess;
}

}  // namespace

void return_to_pool(State& machine, const Piece& piece) {
  Pool& pool = machine.pools.at(piece.pool);
  pool.used_bytes -= piece.bytes;
  keep_at_most(machine, pool, pool.destroyed ? 0 : pool.threshold_bytes);
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return run_call("cudaDeviceGetDefaultMemPool", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!exists(call.machine, device)) return cudaErrorInvalidDevice;
    if (!call.machine.options.pools) return cudaErrorNotSupported;
    *pool = reinterpret_cast<cudaMemPool_t>(const_cast<void*>(default_pool(call.machine, device)));
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return run_call("cudaMemPoolCreate", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!call.machine.options.pools) return cudaErrorNotSupported;
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice || !exists(call.machine, properties->location.id)) {
      return cudaErrorInvalidValue;
    }
    *pool = reinterpret_cast<cudaMemPool_t>(const_cast<void*>(make_pool(call.machine, properties->location.id, true)));
    return cudaSuccess;
  });
}

// What was allocated from it stays until it is freed.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return run_call("cudaMemPoolDestroy", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Pool* pool = find_pool(call, handle);
    if (!pool || !pool->made) return cudaErrorInvalidValue;
    pool->destroyed = true;
    keep_at_most(call.machine, *pool, 0);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t handle) {
  return run_call("cudaMallocAsync", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Stream* stream = find_stream(call, handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!call.machine.options.pools) return cudaErrorNotSupported;
    const void* pool = default_pool(call.machine, stream->device);
    return take(call, memory, bytes, pool, call.machine.pools[pool], handle);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool_handle, cudaStream_t handle) {
  return run_call("cudaMallocFromPoolAsync", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!find_stream(call, handle)) return cudaErrorInvalidResourceHandle;
    Pool* pool = find_pool(call, pool_handle);
    return pool ? take(call, memory, bytes, pool_handle, *pool, handle) : cudaErrorInvalidValue;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return run_call("cudaFreeAsync", context, [&](Call& call) { return give_back(call, memory, stream); });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* list, std::size_t count) {
  return run_call("cudaMemPoolSetAccess", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Pool* pool = find_pool(call, handle);
    if (!pool) return cudaErrorInvalidValue;
    const auto& denied = call.machine.options.no_peer;
    for (const cudaMemAccessDesc& each : std::span(list, count)) {
      const int device = each.location.id;
      if (each.location.type != cudaMemLocationTypeDevice || !exists(call.machine, device))
        return cudaErrorInvalidValue;
      const bool gives = each.flags == cudaMemAccessFlagsProtReadWrite;
      if (!gives && each.flags != cudaMemAccessFlagsProtNone) return cudaErrorInvalidValue;
      if (device == pool->device && !gives) return cudaErrorInvalidValue;  // its own device always has access
      if (gives && std::find(denied.begin(), denied.end(), std::pair(device, pool->device)) != denied.end()) {
        return cudaErrorInvalidDevice;
      }
      pool->access[static_cast<std::size_t>(device)] = gives;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation* location) {
  return run_call("cudaMemPoolGetAccess", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Pool* pool = find_pool(call, handle);
    if (!pool || location->type != cudaMemLocationTypeDevice || !exists(call.machine, location->id)) {
      return cudaErrorInvalidValue;
    }
    const bool has = pool->access[static_cast<std::size_t>(location->id)];
    *flags = has ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, std::size_t bytes) {
  return run_call("cudaMemPoolTrimTo", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Pool* pool = find_pool(call, handle);
    if (!pool) return cudaErrorInvalidValue;
    keep_at_most(call.machine, *pool, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return run_call("cudaMemPoolSetAttribute", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    Pool* pool = find_pool(call, handle);
    if (!pool) return cudaErrorInvalidValue;
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        return cudaSuccess;  // no address is used again here
      case cudaMemPoolAttrReleaseThreshold:
        pool->threshold_bytes = *static_cast<const std::uint64_t*>(value);
        return cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        if (*static_cast<const std::uint64_t*>(value) != 0) return cudaErrorInvalidValue;
        (attribute == cudaMemPoolAttrUsedMemHigh ? pool->most_used_bytes : pool->most_reserved_bytes) = 0;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return run_call("cudaMemPoolGetAttribute", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const Pool* pool = find_pool(call, handle);
    if (!pool) return cudaErrorInvalidValue;
    const auto answer = [value](std::uint64_t bytes) {
      *static_cast<std::uint64_t*>(value) = bytes;
      return cudaSuccess;
    };
    switch (attribute) {
      case cudaMemPoolAttrReleaseThreshold:
        return answer(pool->threshold_bytes);
      case cudaMemPoolAttrReservedMemCurrent:
        return answer(pool->reserved_bytes);
      case cudaMemPoolAttrReservedMemHigh:
        return answer(pool->most_reserved_bytes);
      case cudaMemPoolAttrUsedMemCurrent:
        return answer(pool->used_bytes);
      case cudaMemPoolAttrUsedMemHigh:
        return answer(pool->most_used_bytes);
      default:
        return cudaErrorInvalidValue;
    }
  });
}

}  // extern "C"
