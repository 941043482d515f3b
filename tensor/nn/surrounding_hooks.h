// Hooks around all others of a module. Private to the library.
#pragma once

#include <cstdint>

#include "lockstep/tensor/nn/module.h"

namespace lockstep::detail {

// `enter` is called before every forward pre-hook and `leave` after every forward hook, whenever those are registered:
// they see what `enter` has prepared. Returns a number for remove_hook, of both. Those that deep_copy makes are
// without.
LOCKSTEP_API std::uint64_t surround(ModuleBase& module, ForwardPreHook enter, ForwardHook leave);

// Whether the number is that of such hooks.
bool surrounds(std::uint64_t id);

}  // namespace lockstep::detail
