#include "lockstep/runtime/cuda/nvtx.h"

#include <nvtx3/nvToolsExt.h>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/trace/trace_environment.h"

namespace lockstep::cuda {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("lockstep");
  return made;
}

void push(const char* name) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  (void)nvtxDomainRangePushEx(domain(), &range);
}

void pop() { (void)nvtxDomainRangePop(domain()); }

}  // namespace

void install_nvtx() {
  trace::detail::use_ranges({.push = push, .pop = pop}, lockstep::detail::environment_flag("LOCKSTEP_NVTX"));
}

}  // namespace lockstep::cuda
