// What a drill runs on: devices of one kind and the fault that they may have. Each drill program brings one:
// host_machine.cpp, or the machine in tests/fake_cuda/drill.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "draw.h"
#include "lockstep/runtime/error.h"

namespace drill {

using namespace lockstep;
struct Plan;

// When a fault begins.
struct FaultTime {
  std::size_t step = 0;
  bool from_empty_caches = false;
};

class Machine {
 public:
  Machine(DeviceType device_type, int device_count) : type(device_type), devices(device_count) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  virtual ~Machine() = default;

  const DeviceType type;
  const int devices;
  Device device(int index) const { return type == DeviceType::host ? Device::host(index) : Device::cuda(index); }

  // ---- Drawn, in any process.
  virtual FaultTime draw_fault(Draw& draw, int steps) = 0;
  virtual std::string fault() const = 0;  // its kind; empty: none
  virtual std::string text() const = 0;   // what the machine and the fault are like

  // ---- In the process of the run.
  // Before a device is used. Waits are `patience` times as long as usual.
  virtual void start(const Plan& plan, int patience) = 0;
  virtual void arm() = 0;                       // from here on the fault may come
  virtual bool struck() const = 0;              // it has met something
  virtual void clear() = 0;                     // the end of the fault
  virtual bool lasts() const { return false; }  // it goes on after it has met something

  virtual bool may_hang() const { return false; }  // until release()
  virtual void release() {}

  // Devices that the fault has ruined.
  virtual std::vector<Device> lost() const { return {}; }

  // "" when it is what the fault causes, else what is wrong with it.
  virtual std::string judge(const OutOfMemory& error, const Plan& plan) const = 0;
  virtual std::string judge(const DeviceError& error, const Plan& plan) const = 0;
  virtual std::string judge(const TimeoutError& error, const Plan& plan) const = 0;

  // At the end: what the machine has seen that was against its rules, and what it still has and should not.
  virtual std::string broken_rules() { return {}; }
  virtual std::string left_over() { return {}; }
};

std::shared_ptr<Machine> draw_machine(std::uint64_t seed, Draw& draw);

}  // namespace drill
