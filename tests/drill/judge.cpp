#include "judge.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/faults.h"

namespace drill {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool struck(Device device) { return device.type() == DeviceType::host && detail::host_faults().struck(device.index()); }

// "replica 2 on host:5", for a replica that the plan has.
bool names_replica(const std::string& text, const Plan& plan) {
  for (const auto* devices : {&plan.devices, &plan.others}) {
    for (std::size_t i = 0; i < devices->size(); ++i) {
      if (contains(text, cat("replica ", i, " on ", (*devices)[i]))) return true;
    }
  }
  return false;
}

std::string judge_replicas(const ReplicaError& error, const Plan& plan) {
  for (const ReplicaError::Failure& failure : error.failures) {
    bool right = false;
    for (const auto* devices : {&plan.devices, &plan.others}) {
      const auto index = static_cast<std::size_t>(failure.replica);
      right = right || (index < devices->size() && (*devices)[index] == failure.device);
    }
    if (!right) return cat("no replica ", failure.replica, " is on ", failure.device, ": ", error.what());
    if (!contains(error.what(), cat("replica ", failure.replica, " on ", failure.device))) {
      return cat("the message does not name replica ", failure.replica, ": ", error.what());
    }
  }
  try {
    std::rethrow_if_nested(error);
  } catch (...) {
    return judge(std::current_exception(), plan);
  }
  return cat("nothing is nested in ", error.what());
}

}  // namespace

std::string judge(const std::exception_ptr& error, const Plan& plan) {
  const FaultKind kind = plan.fault.kind;
  try {
    std::rethrow_exception(error);
  } catch (const ReplicaError& failed) {
    return judge_replicas(failed, plan);
  } catch (const OutOfMemory& failed) {
    if (kind != FaultKind::allocation) return cat("OutOfMemory: ", failed.what());
    if (!struck(failed.device)) return cat("OutOfMemory names ", failed.device, ", which was not struck");
    return contains(failed.what(), to_string(failed.device)) ? "" : cat("no device in: ", failed.what());
  } catch (const DeviceError& failed) {
    // A device whose replica is late answers so too.
    const bool lost = kind == FaultKind::hang && names_replica(failed.what(), plan);
    if (kind != FaultKind::throws && !lost) return cat("DeviceError: ", failed.what());
    if (!lost && !struck(failed.device)) return cat("DeviceError names ", failed.device, ", which was not struck");
    return contains(failed.what(), to_string(failed.device)) ? "" : cat("no device in: ", failed.what());
  } catch (const TimeoutError& failed) {
    if (kind != FaultKind::hang) return cat("TimeoutError: ", failed.what());
    return contains(failed.what(), "[parallel_apply]") && names_replica(failed.what(), plan)
               ? ""
               : cat("TimeoutError that names no replica: ", failed.what());
  } catch (const RaceError& failed) {
    return cat("RaceError: ", failed.what());
  } catch (const Error& failed) {
    return cat("another error of the library: ", failed.what());
  } catch (const std::exception& failed) {
    return cat("a foreign exception: ", failed.what());
  } catch (...) {
    return "a foreign exception";
  }
}

}  // namespace drill
