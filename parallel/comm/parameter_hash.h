// A checksum of a module's parameters.
#pragma once

#include <string>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// SHA-256, in hex, of the parameters and buffers in their order: name, dtype, shape and elements of each (little
// endian, row by row). Equal for modules whose bits are equal, whatever devices they are on. Blocks.
LOCKSTEP_API std::string parameters_sha256(const ModuleBase& module);

}  // namespace lockstep
