// Calls of replicas as a prepared module's, for inference.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/nn/prepare.h"

namespace lockstep::detail {

// Of one DataParallel, on all its devices. Any thread may call it.
class LOCKSTEP_API ReplicaFolding {
 public:
  // Whether a call of the module folds: there are no gradients, and nothing in it is in training mode. Looks at what is
  // below the module at the first call, and where somebody has been shown that since.
  bool folds(const ModuleBase& module);
  // Somebody is: the members may be others afterwards.
  void show() { shown_.store(true, std::memory_order_release); }
  // What is folded goes: forward may be another one afterwards.
  void forget();
  Folding& folding() { return folding_; }

 private:
  Folding folding_;
  std::atomic<bool> shown_{true};
  std::mutex mutex_;
  std::vector<std::shared_ptr<ModuleState>> modules_;  // the module and all below it
};

// A replica in a call that folds.
template <class Replica>
class PreparedReplica {
 public:
  PreparedReplica(const Replica& replica, std::shared_ptr<ReplicaFolding> folding)
      : replica_(replica), folding_(std::move(folding)) {}

  Device device() const { return replica_.device(); }
  void read(Reading& reading) const { replica_.read(reading); }

  template <class... Args>
  auto operator()(Args&... args) const {
    return replica_.visit([&](const auto& module) { return call_folded(folding_->folding(), module, args...); });
  }

 private:
  Replica replica_;
  std::shared_ptr<ReplicaFolding> folding_;
};

template <class Replica>
auto with_folding(const std::vector<Replica>& replicas, const std::shared_ptr<ReplicaFolding>& folding) {
  std::vector<PreparedReplica<Replica>> prepared;
  for (const Replica& replica : replicas) prepared.emplace_back(replica, folding);
  return prepared;
}

}  // namespace lockstep::detail
