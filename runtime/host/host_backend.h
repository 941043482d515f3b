// Plain host memory and virtual host devices, which differ only in their number and their memory's size.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"

namespace lockstep::detail {

// Everything that does not depend on when work runs; the streams and events are the modes' (see inline_backend.h).
class HostBackend : public Backend {
 public:
  struct DeviceLayout {
    std::size_t memory_bytes;
    int multiprocessors;
  };
  struct Kind {
    bool synchronous, checked;
    bool host_memory = true, stages_pageable = false;
  };
  HostBackend(DeviceType type, const std::vector<DeviceLayout>& devices, Kind kind);

  DeviceType type() const noexcept override { return type_; }
  int device_count() const noexcept override { return static_cast<int>(devices_.size()); }
  const DeviceProperties& properties(int index) const override { return device(index).properties; }
  void bind_thread(int) override {}

  void* allocate(int index, std::size_t bytes) override;
  void free(int index, void* memory) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* memory) noexcept override;

  bool recovers() const noexcept override { return true; }

  bool can_access_peer(int, int) const override { return true; }
  void enable_peer_access(int, int) override {}

 private:
  struct DeviceMemory {
    DeviceProperties properties;
    std::mutex mutex;
    std::size_t used_bytes = 0;
    std::unordered_map<void*, std::size_t> pieces;
  };
  DeviceMemory& device(int index) const { return *devices_[static_cast<std::size_t>(index)]; }

  DeviceType type_;
  std::vector<std::unique_ptr<DeviceMemory>> devices_;
};

// What configure_host() was given.
const HostOptions& configured_host();

// The virtual devices, and the one cpu device, which works in the calling thread whatever their mode and is watched
// when they are.
Backend* make_host_backend(const HostOptions& options);
Backend* make_cpu_backend();

}  // namespace lockstep::detail
