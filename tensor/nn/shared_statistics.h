// Where a BatchNorm gets the statistics of a batch that is divided among several: ranks, or the replicas of a call.
#pragma once

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// What holds for one BatchNorm, in training. Its members are those whose pieces make up the batch.
class LOCKSTEP_API SharedStatistics {
 public:
  SharedStatistics() = default;
  SharedStatistics(const SharedStatistics&) = delete;
  SharedStatistics& operator=(const SharedStatistics&) = delete;
  virtual ~SharedStatistics() = default;

  // Whether this call is one of several members; else the norm uses the statistics of its own piece. `device` is that
  // of the input. Throws Error where a call on it cannot share.
  virtual bool shares(Device device) const = 0;
  // Brings together what each member has (`mine`: the same shape and dtype everywhere): [members, ..mine], the same
  // bits for all of them, on the device of `mine`. Differentiable; every member takes part in the backward of the
  // others.
  virtual Tensor gather(const Tensor& mine) const = 0;
  // This member's call has failed: the others are not left waiting for it.
  virtual void abandon(const char* reason) const noexcept = 0;
};

}  // namespace lockstep
