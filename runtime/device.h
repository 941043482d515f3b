// What a device is called, and which devices there are.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

enum class DeviceType : std::uint8_t {
  cpu,   // plain host memory, computes in the calling thread
  host,  // a virtual device: host cores with a memory of their own
  cuda,  // a logical CUDA device
};

LOCKSTEP_API std::string to_string(DeviceType type);

// A logical device. A value; naming a device that does not exist is an error only when it is used or parsed.
class Device {
 public:
  constexpr Device() = default;
  static constexpr Device cpu() { return Device(DeviceType::cpu, 0); }
  static constexpr Device host(int index) { return Device(DeviceType::host, index); }
  static constexpr Device cuda(int index) { return Device(DeviceType::cuda, index); }

  // "cpu", "host:3", "cuda:1". Throws InvalidArgument, listing what exists, for bad text, negative or absent indices.
  LOCKSTEP_API static Device parse(std::string_view text);

  constexpr DeviceType type() const { return type_; }
  constexpr int index() const { return index_; }
  constexpr bool is_cpu() const { return type_ == DeviceType::cpu; }

  friend constexpr auto operator<=>(const Device&, const Device&) = default;  // NOLINT(modernize-use-nullptr)

 private:
  // Indices that do not fit stay absent instead of wrapping to a device that exists.
  constexpr Device(DeviceType type, int index)
      : type_(type),
        index_(index < 0       ? -1
               : index > 32767 ? 32767
                               : static_cast<std::int16_t>(index)) {}
  DeviceType type_ = DeviceType::cpu;
  std::int16_t index_ = 0;
};

LOCKSTEP_API std::string to_string(Device device);
LOCKSTEP_API std::string to_string(const std::vector<Device>& devices);  // "[host:0, host:1]"

// A device list: "cuda:0,cuda:2", "host:3,host:1"; "host:4" alone is the first four; "host:all", "cuda:all"; a bare
// count "4" is the first four accelerators. Throws InvalidArgument as Device::parse does; duplicates are an error.
LOCKSTEP_API std::vector<Device> parse_devices(std::string_view text);

// The CUDA devices if there are any, else the host devices. LOCKSTEP_DEVICES (a list as above) overrides it.
LOCKSTEP_API std::vector<Device> accelerators();

// All devices: cpu first, then host, then cuda.
LOCKSTEP_API const std::vector<Device>& all_devices();

// Position of `device` in all_devices(): a dense index for tables per device.
// Throws InvalidArgument, listing what exists, for an absent device.
LOCKSTEP_API int ordinal(Device device);
// Of one type. Tables are as long as there are devices.
inline constexpr int kMaxDevices = 256;
// Positions in all_devices(): cpu, and two kinds of accelerators.
inline constexpr int kMaxOrdinals = 1 + 2 * kMaxDevices;

struct DeviceProperties {
  std::string name;
  std::size_t total_memory_bytes = 0;
  int multiprocessors = 1;
  // Its memory is memory of the host: the host reads and writes it, and so do streams of other host devices.
  bool host_memory = false;
  // Work is finished when the call that enqueued it returns; nothing is ever in flight.
  bool synchronous = false;
  // An order checker watches what is enqueued (host mode strict).
  bool checked = false;
  // Copies between this device and pageable host memory must be staged through pinned memory to be asynchronous.
  bool stages_pageable = false;
};
LOCKSTEP_API const DeviceProperties& properties(Device device);

}  // namespace lockstep
