// Many tensors in few collectives.
#pragma once

#include <functional>
#include <span>

#include "lockstep/runtime/device.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Calls `communicate` with the elements of several tensors one after another, [elements], on `device`: pieces of one
// dtype and about 32 MiB, which bounds the memory that is needed beside the tensors. They get what it returns, of the
// same shape; where that is undefined they stay what they are. The piece of a single contiguous tensor on `device` is
// that tensor's memory. On the current streams; tensors without elements are left out.
void coalesce(std::span<const Tensor> tensors, Device device,
              const std::function<Tensor(const Tensor& piece)>& communicate);

}  // namespace lockstep::detail
