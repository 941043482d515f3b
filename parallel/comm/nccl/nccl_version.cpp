#include "lockstep/parallel/comm/nccl/nccl_version.h"

#include "lockstep/parallel/comm/nccl/nccl_library.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::detail {

std::string nccl_version() {
  if (!nccl::library_error().empty()) return "";
  const int version = nccl::library_version();
  return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

bool nccl_shares_gpus() {
  return environment("NCCL_MULTI_RANK_GPU_ENABLE") == "1" && nccl::library_error().empty() &&
         nccl::library_version() >= 23000;
}

}  // namespace lockstep::detail
