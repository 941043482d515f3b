#include "lockstep/kernels/host/onednn_version.h"

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <oneapi/dnnl/dnnl.h>

#include "lockstep/runtime/strings.h"

namespace lockstep::kernels::host {

lockstep::detail::Version onednn_version() {
  const dnnl_version_t* found = dnnl_version();
  return {cat(DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR, ".", DNNL_VERSION_PATCH),
          cat(found->major, ".", found->minor, ".", found->patch)};
}

}  // namespace lockstep::kernels::host

#else

lockstep::detail::Version lockstep::kernels::host::onednn_version() { return {}; }

#endif
