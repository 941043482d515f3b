// How a kernel says that an index was out of range: in memory that both sides see. The host looks at it after every
// wait and throws InvalidArgument; a device-side assertion instead would lose the GPU for the process. Private to the
// library.
#pragma once

#include "lockstep/runtime/device.h"

namespace lockstep::cuda {

// Pinned and mapped, kReports per logical device: callers (runtime/caller.h) have one each, which those that are
// kReports apart share. So of requests that threads compute on streams of their own, the one with the bad index is
// told.
inline constexpr int kReports = 64;
struct KernelReport {
  int reported;     // 0, then 1 by atomicCAS_system: the first one stays
  int op;           // one of ReportedOp; written, like the rest, before a __threadfence_system and `ready`
  long long index;  // what was out of range
  long long size;   // of the dimension: [0, size) was expected
  int ready;
};

enum ReportedOp : int {
  report_gather,
  report_scatter_add,
  report_index_select,
  report_index_add,
  report_max_unpool2d,
  report_cross_entropy,
  report_attention,
  report_attention_grad,
};

// The address that kernels of the calling thread on `device` use. It lives for ever.
KernelReport* kernel_report(Device device);

}  // namespace lockstep::cuda
