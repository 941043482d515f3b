// The version of NCCL that is there. Private to the library.
#pragma once

#include <string>

namespace lockstep::detail {

// "2.28.9"; empty without one that can be used. Opens the library.
std::string nccl_version();

// Whether ranks of several processes may share a GPU: from 2.30 on where NCCL_MULTI_RANK_GPU_ENABLE is 1. Ranks of one
// process may not.
bool nccl_shares_gpus();

}  // namespace lockstep::detail
