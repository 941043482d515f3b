// Memory: host memory that belongs to a device.
#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMostFreed = 4096;  // allocations that are kept to notice late uses

// Its contents go, its addresses stay out of use.
void bury(State& machine, std::uintptr_t begin, Piece& piece) {
  piece.freed = true;
  void* memory = reinterpret_cast<void*>(begin);
  madvise(memory, piece.mapped_bytes, MADV_DONTNEED);
  mprotect(memory, piece.mapped_bytes, PROT_NONE);
  machine.freed.push_back(begin);
  if (machine.freed.size() <= kMostFreed) return;
  const auto oldest = machine.pieces.find(machine.freed.front());
  munmap(reinterpret_cast<void*>(oldest->first), oldest->second.mapped_bytes);
  machine.pieces.erase(oldest);
  machine.freed.erase(machine.freed.begin());
}

cudaError_t take(Call& call, void** memory, std::size_t bytes, bool pinned) {
  *memory = nullptr;
  const int device = call.thread.current;
  std::lock_guard lock(call.machine.mutex);
  DeviceState& on = call.machine.devices[static_cast<std::size_t>(device)];
  if (!pinned && bytes > on.memory_bytes - on.used_bytes) return cudaErrorMemoryAllocation;
  Piece piece{.bytes = bytes, .device = device, .pinned = pinned};
  void* taken = bytes == 0 ? nullptr : map_memory(bytes, piece.mapped_bytes);
  if (!taken) return bytes == 0 ? cudaSuccess : cudaErrorMemoryAllocation;
  if (!pinned) on.used_bytes += bytes;
  call.machine.pieces[reinterpret_cast<std::uintptr_t>(taken)] = piece;
  // The devices it may be used from are judged here, by ordinal; the checker knows logical devices.
  judge(call, [&](OrderChecker& checker) { checker.add_memory(taken, bytes, Device::cuda(device), true); });
  *memory = taken;
  return cudaSuccess;
}

cudaError_t give_back(Call& call, void* memory, bool pinned) {
  if (!memory) return cudaSuccess;
  int device = 0;
  {
    std::lock_guard lock(call.machine.mutex);
    auto* found = call.machine.piece_at(memory);
    if (!found || found->first != reinterpret_cast<std::uintptr_t>(memory) || found->second.pinned != pinned ||
        found->second.registered) {
      return call.fail(Rule::foreign_memory, "the beginning of an allocation is expected");
    }
    if (found->second.freed) return call.fail(Rule::use_after_free, "it was freed before");
    device = found->second.device;
  }
  judge(call, [&](OrderChecker& checker) {
    checker.remove_memory(memory);
    checker.host_wait({});  // throws what it found wrong
  });
  // As CUDA does: what is in flight is through before the memory goes. Host memory may be anybody's.
  for (int each = 0; each < call.machine.options.devices; ++each) {
    if (pinned || each == device) drain(call.machine, each);
  }
  std::lock_guard lock(call.machine.mutex);
  auto* found = call.machine.piece_at(memory);
  if (!found || found->second.freed) return call.fail(Rule::use_after_free, "it was freed by another thread");
  if (found->second.pool)
    return_to_pool(call.machine, found->second);
  else if (!pinned)
    call.machine.devices[static_cast<std::size_t>(device)].used_bytes -= found->second.bytes;
  bury(call.machine, found->first, found->second);
  return cudaSuccess;
}

}  // namespace

// The page behind it is not to be touched.
void* map_memory(std::size_t bytes, std::size_t& mapped_bytes) {
  mapped_bytes = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage + kPage;
  void* memory =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  mprotect(static_cast<std::byte*>(memory) + mapped_bytes - kPage, kPage, PROT_NONE);
  return memory;
}

bool check_memory(const Call& call, const void* memory, std::size_t bytes, int device, const char* role) {
  const auto* found = call.machine.piece_at(memory);
  if (device == kHostMemory) {
    if (!found) return true;  // the program's own
    if (found->second.freed) return call.fail(Rule::use_after_free, lockstep::cat(role, " was freed")), false;
    if (!found->second.pinned) {
      (void)call.fail(Rule::foreign_memory,
                      lockstep::cat(role, ": expected host memory, got memory of device ", found->second.device));
      return false;
    }
  } else if (!found) {
    (void)call.fail(Rule::foreign_memory,
                    lockstep::cat(role, ": expected memory of device ", device, ", got memory of no device"));
    return false;
  } else if (found->second.freed) {
    (void)call.fail(Rule::use_after_free, lockstep::cat(role, " was freed"));
    return false;
  } else if (found->second.pinned || found->second.device != device) {
    const std::string got =
        found->second.pinned ? "pinned memory" : lockstep::cat("memory of device ", found->second.device);
    (void)call.fail(Rule::foreign_memory, lockstep::cat(role, ": expected memory of device ", device, ", got ", got));
    return false;
  }
  const std::size_t left = found->first + found->second.bytes - reinterpret_cast<std::uintptr_t>(memory);
  if (bytes <= left) {
    if (Capture* const capture = capture_of(call.machine, call.stream)) {
      std::size_t& used = capture->operands[memory];
      used = std::max(used, bytes);
    }
    return true;
  }
  (void)call.fail(Rule::out_of_bounds, lockstep::cat(role, ": expected at most the ", left,
                                                     " bytes up to the end of the allocation, got ", bytes));
  return false;
}

bool check_pool_access(const Call& call, const Piece& piece, int device, const char* role) {
  if (call.machine.pools.at(piece.pool).access[static_cast<std::size_t>(device)]) return true;
  (void)call.fail(Rule::pool_access, lockstep::cat(role, " is memory of a pool of device ", piece.device,
                                                   ", to which device ", device, " was not given access"));
  return false;
}

bool check_operand(const Call& call, const void* memory, std::size_t bytes, int device, const char* role) {
  const auto* found = call.machine.piece_at(memory);
  if (!found || !found->second.pool || found->second.freed) return check_memory(call, memory, bytes, device, role);
  return check_pool_access(call, found->second, device, role) &&
         check_memory(call, memory, bytes, found->second.device, role);
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return run_call("cudaMalloc", context | raw, [&](Call& call) { return take(call, memory, bytes, false); });
}

cudaError_t cudaFree(void* memory) {
  return run_call("cudaFree", context | raw, [&](Call& call) { return give_back(call, memory, false); });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned int) {
  return run_call("cudaHostAlloc", context | raw, [&](Call& call) { return take(call, memory, bytes, true); });
}

cudaError_t cudaFreeHost(void* memory) {
  return run_call("cudaFreeHost", context | raw, [&](Call& call) { return give_back(call, memory, true); });
}

// The program's own memory, from now on pinned.
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned int) {
  return run_call("cudaHostRegister", context | raw, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    if (!memory || bytes == 0) return cudaErrorInvalidValue;
    if (call.machine.piece_at(memory)) return cudaErrorHostMemoryAlreadyRegistered;
    const int device = call.thread.current;
    call.machine.pieces[reinterpret_cast<std::uintptr_t>(memory)] = {
        .bytes = bytes, .device = device, .pinned = true, .registered = true};
    judge(call, [&](OrderChecker& checker) { checker.add_memory(memory, bytes, Device::cuda(device), true); });
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  return run_call("cudaHostUnregister", context | raw, [&](Call& call) {
    std::unique_lock lock(call.machine.mutex);
    const auto found = call.machine.pieces.find(reinterpret_cast<std::uintptr_t>(memory));
    if (found == call.machine.pieces.end() || !found->second.registered) return cudaErrorHostMemoryNotRegistered;
    call.machine.pieces.erase(found);
    lock.unlock();
    judge(call, [&](OrderChecker& checker) {
      checker.remove_memory(memory);
      checker.host_wait({});
    });
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** mapped, void* memory, unsigned int) {
  return run_call("cudaHostGetDevicePointer", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const auto* found = call.machine.piece_at(memory);
    if (!found || !found->second.pinned || found->second.freed) return cudaErrorInvalidValue;
    *mapped = memory;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return run_call("cudaMemGetInfo", context, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const DeviceState& device = call.machine.devices[static_cast<std::size_t>(call.thread.current)];
    *free_bytes = device.memory_bytes - device.used_bytes;
    *total_bytes = device.memory_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  return run_call("cudaPointerGetAttributes", nothing, [&](Call& call) {
    std::lock_guard lock(call.machine.mutex);
    const auto* found = call.machine.piece_at(memory);
    *attributes = {};
    attributes->device = -2;  // what the real one says of memory that it does not know
    attributes->hostPointer = const_cast<void*>(memory);
    attributes->type = cudaMemoryTypeUnregistered;
    if (!found || found->second.freed) return cudaSuccess;
    attributes->device = found->second.device;
    attributes->devicePointer = const_cast<void*>(memory);
    attributes->type = found->second.pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    if (!found->second.pinned) attributes->hostPointer = nullptr;
    return cudaSuccess;
  });
}

}  // extern "C"
