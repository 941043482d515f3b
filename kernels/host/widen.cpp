#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {

void widen(const View& view, std::int64_t count, float* to) {
  if (view.dtype == DType::f16) {
    const auto* from = static_cast<const Half*>(view.data);
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  } else {
    const auto* from = static_cast<const BFloat16*>(view.data);
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

void narrow(const float* from, std::int64_t count, const View& view) {
  if (view.dtype == DType::f16) {
    auto* to = static_cast<Half*>(view.data);
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  } else {
    auto* to = static_cast<BFloat16*>(view.data);
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

}  // namespace lockstep::kernels::host
