#include "lockstep/parallel/comm/nccl/nccl_version.h"

#include "lockstep/parallel/comm/nccl/nccl_library.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::detail {

std::string nccl_version() {
  if (!nccl::library_error().empty()) return "";
  const int version = nccl::library_version();
  return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace lockstep::detail
