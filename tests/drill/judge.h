// Whether an exception is the one that a fault should cause.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "plan.h"

namespace drill {

// Thrown by the drill where a result is not the expected one.
struct WrongResult {
  std::string what;
};

// "" when `error` is of the type that the plan's fault causes and names the device that was struck, else what it is.
// `timed_out_on` is the device whose wait ended at its deadline, if the drill itself was waiting.
std::string judge(const std::exception_ptr& error, const Plan& plan);

}  // namespace drill
