// Whether an exception is the one that a fault should cause.
#pragma once

#include <exception>
#include <string>

#include "plan.h"

namespace drill {

// Thrown by the drill where a result is not the expected one.
struct WrongResult {
  std::string what;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// "replica 2 on host:5", for a replica that the plan has.
bool names_replica(const std::string& text, const Plan& plan);

// "" when `error` is of the type that the plan's fault causes and names the device that was struck, else what it is.
std::string judge(const std::exception_ptr& error, const Plan& plan);

}  // namespace drill
