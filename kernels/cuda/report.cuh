// How a kernel says that an index is out of range.
#pragma once

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/runtime/cuda/kernel_report.h"

namespace lockstep::kernels::cuda {

// The first one stays; the host throws InvalidArgument at its next wait.
__device__ inline void report_index(lockstep::cuda::KernelReport* report, int op, std::int64_t index,
                                    std::int64_t size) {
  // An atomic on the host's memory is a way over the bus and back: not one for each of a million bad indices.
  if (*const_cast<volatile int*>(&report->reported) != 0) return;
  if (atomicCAS_system(&report->reported, 0, 1) != 0) return;
  report->op = op;
  report->index = index;
  report->size = size;
  __threadfence_system();
  *const_cast<volatile int*>(&report->ready) = 1;
}

__device__ inline bool is_inside(std::int64_t index, std::int64_t size) {
  return static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(size);
}

}  // namespace lockstep::kernels::cuda
