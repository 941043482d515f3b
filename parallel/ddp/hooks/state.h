// What the states of hooks read from files.
#pragma once

#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep::detail {

// The count of steps or iterations in an entry of a state; InvalidArgument unless it is an i64[] of at least 0.
std::int64_t read_count(const char* op, const NamedTensor& entry);
// The same from a state that has no other entry than `name`.
std::int64_t read_only_count(const char* op, const char* name, const std::vector<NamedTensor>& state);

}  // namespace lockstep::detail
