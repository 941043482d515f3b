// LOCKSTEP_HD marks what both the host and a CUDA device compile; without nvcc it means nothing.
#pragma once

#if defined(__CUDACC__)
#define LOCKSTEP_HD __host__ __device__
#else
#define LOCKSTEP_HD
#endif
