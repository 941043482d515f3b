#include "lockstep/runtime/host/host_backend.h"

#include <cstdlib>
#include <new>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/memory/alignment.h"

namespace lockstep::detail {
namespace {

void* allocate_aligned(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(-1) - kMemoryAlignment) return nullptr;
  return std::aligned_alloc(kMemoryAlignment, aligned_bytes(bytes ? bytes : 1));
}

}  // namespace

HostBackend::HostBackend(DeviceType type, const std::vector<DeviceLayout>& devices, Kind kind) : type_(type) {
  for (const DeviceLayout& layout : devices) {
    auto memory = std::make_unique<DeviceMemory>();
    memory->properties.name = type == DeviceType::cpu ? "host memory" : cat("virtual host device ", devices_.size());
    memory->properties.total_memory_bytes = layout.memory_bytes;
    memory->properties.multiprocessors = layout.multiprocessors;
    memory->properties.host_memory = kind.host_memory;
    memory->properties.synchronous = kind.synchronous;
    memory->properties.checked = kind.checked;
    memory->properties.stages_pageable = kind.stages_pageable;
    devices_.push_back(std::move(memory));
  }
}

void* HostBackend::allocate(int index, std::size_t bytes) {
  if (type_ == DeviceType::host && host_faults().allocation_fails(index)) return nullptr;
  DeviceMemory& memory = device(index);
  std::lock_guard lock(memory.mutex);
  if (bytes > memory.properties.total_memory_bytes - memory.used_bytes) return nullptr;
  void* piece = allocate_aligned(bytes);
  if (!piece) return nullptr;
  try {
    memory.pieces.emplace(piece, bytes);
  } catch (const std::bad_alloc&) {
    std::free(piece);
    return nullptr;
  }
  memory.used_bytes += bytes;
  return piece;
}

void HostBackend::free(int index, void* piece) noexcept {
  DeviceMemory& memory = device(index);
  std::lock_guard lock(memory.mutex);
  const auto found = memory.pieces.find(piece);
  if (found == memory.pieces.end()) return;  // not this device's memory: leaking it is the harmless answer
  memory.used_bytes -= found->second;
  memory.pieces.erase(found);
  std::free(piece);
}

void* HostBackend::allocate_pinned(std::size_t bytes) { return allocate_aligned(bytes); }

void HostBackend::free_pinned(void* memory) noexcept { std::free(memory); }

}  // namespace lockstep::detail
