// The ways that kernels name in a trace.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/context.h"

// Waits for the device, ends the trace, and gives the names in it that begin in one of these ways.
inline std::vector<std::string> traced_ways(lockstep::Device device,
                                            std::initializer_list<std::string_view> beginnings) {
  lockstep::synchronize(device);
  lockstep::trace::stop();
  std::vector<std::string> found;
  for (const lockstep::trace::Span& span : lockstep::trace::spans()) {
    const std::string name = span.work.name;
    if (std::ranges::any_of(beginnings, [&](std::string_view with) { return name.starts_with(with); }))
      found.push_back(name);
  }
  return found;
}
