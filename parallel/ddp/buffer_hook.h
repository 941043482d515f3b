// Buffer hooks: what DistributedDataParallel does with the module's buffers instead of taking over rank 0's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// Called around every training forward whose gradients are reduced, of a module that has buffers (not only ignored
// ones), on every rank, in the rank's thread, without gradient recording and on the current stream. It works in place,
// on the buffers (those that are ignored are not among them); what it throws is an Error of the forward, and a
// CommError on the other ranks.
struct BufferHook {
  enum class When : std::uint8_t { before_forward, after_forward };

  std::string name;  // for errors, and to know that all ranks have the same
  std::function<void(std::span<const NamedParameter> buffers, Communicator& communicator)> call;
  When when = When::before_forward;
};

}  // namespace lockstep
