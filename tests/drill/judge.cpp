#include "judge.h"

#include "lockstep/runtime/error.h"

namespace drill {
namespace {

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

bool names_replica(const std::string& text, const Plan& plan) {
  for (const auto* devices : {&plan.devices, &plan.others}) {
    for (std::size_t i = 0; i < devices->size(); ++i) {
      if (contains(text, cat("replica ", i, " on ", (*devices)[i]))) return true;
    }
  }
  return false;
}

std::string judge(const std::exception_ptr& error, const Plan& plan) {
  try {
    std::rethrow_exception(error);
  } catch (const ReplicaError& failed) {
    return judge_replicas(failed, plan);
  } catch (const OutOfMemory& failed) {
    return plan.machine->judge(failed, plan);
  } catch (const DeviceError& failed) {
    return plan.machine->judge(failed, plan);
  } catch (const TimeoutError& failed) {
    return plan.machine->judge(failed, plan);
  } catch (const WrongResult& wrong) {
    return cat("a wrong result: ", wrong.what);
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
