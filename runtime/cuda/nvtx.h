// Ranges for NVIDIA's profilers. Private to the library.
#pragma once

namespace lockstep::cuda {

// Makes the spans of host threads ranges of NVTX as well, in the domain "lockstep": while a trace is recorded, or with
// LOCKSTEP_NVTX=1 always. Without a profiler in the process a range is a call that returns at once.
void install_nvtx();

}  // namespace lockstep::cuda
