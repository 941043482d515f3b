// The slots of a module's parameters on several devices: filling and refreshing them, protecting them from being
// refreshed while they are read, and summing the gradients of mirrors into the home parameters.
//
// Parameters and buffers of a replicated module lie in flat slabs, one per device, dtype and kind, so that a run of
// adjacent changed slots is one copy. A body is in one slab set at most; later wrappers use ranges of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/tensor/nn/module.h"
#include "lockstep/tensor/nn/replica_transport.h"

namespace lockstep {

struct TransferStats {
  std::uint64_t bytes = 0;        // payload, without padding
  std::uint64_t copies = 0;       // runs
  std::uint64_t nanoseconds = 0;  // host time
};

// The parameters and buffers of one module, found once.
class LOCKSTEP_API ModuleSlots {
 public:
  explicit ModuleSlots(const ModuleBase& module);

  // In registration order, tied ones once.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Parameter>& buffers() const { return buffers_; }

  // Throws InvalidArgument, naming the first parameter or buffer that is not on `home` and where it is, or that is
  // uninitialised.
  void check_placement(Device home) const;

  // Moves parameters and buffers that are in no slab yet into slabs, which refresh() would do too: done while nobody
  // uses the module yet, it spares the first calls a race for their memory. False, and nothing is done, while one of
  // them is uninitialised or they are on several devices.
  bool form_slabs() const;

  // Brings the slots on devices[1…] up to date with the home slots on devices[0]; copies nothing that has not changed.
  // Waits, with a deadline, for readers of a slot it must overwrite. Thread-safe. A transport for just these devices
  // carries the elements, and sums the gradients of the next backward; null, or one for others: copies do.
  TransferStats refresh(std::span<const Device> devices, Milliseconds timeout = kDefaultTimeout,
                        const std::shared_ptr<ReplicaTransport>& transport = nullptr) const;

  // What reducing mirror gradients into these parameters has cost so far.
  TransferStats reduced() const;

  // While `reading` lives, the elements at home stay as they are, but for in-place operations: loads of new ones wait.
  void read(Reading& reading) const;

  // While it lives, this thread reads the slots on `device`: a refresh of them waits. What is enqueued on the current
  // stream of the device when it has ended comes after what other devices copy from there.
  class LOCKSTEP_API ReadLease {
   public:
    ReadLease(const ModuleSlots& slots, Device device);
    ReadLease(const ReadLease&) = delete;
    ReadLease& operator=(const ReadLease&) = delete;
    ~ReadLease();

   private:
    const ModuleSlots& slots_;
    const Device device_;
    Reading reading_;
  };

  // Marks the parameters as being trained by the call that this thread works for, until the scope ends. Throws Error
  // when another call trains one of them: two trainings at once would mix their gradients.
  class LOCKSTEP_API TrainingClaim {
   public:
    explicit TrainingClaim(const ModuleSlots& slots);
    TrainingClaim(const TrainingClaim&) = delete;
    TrainingClaim& operator=(const TrainingClaim&) = delete;
    ~TrainingClaim();

   private:
    const ModuleSlots& slots_;
    std::uint64_t previous_call_;
  };

 private:
  void go_by(const std::shared_ptr<ReplicaTransport>& transport) const;
  void refresh_slots(std::span<const Device> devices, Deadline deadline, TransferStats& stats) const;

  std::vector<Parameter> parameters_, buffers_;
  std::vector<std::shared_ptr<ReadGate>> gates_;  // of their homes, each once: a body keeps the one that it has
};

}  // namespace lockstep
