#include "lockstep/kernels/host/widen.h"

#include "lockstep/kernels/host/half_rows.h"

namespace lockstep::kernels::host {

void widen(const View& view, std::int64_t count, float* to) {
  if (view.dtype == DType::f16)
    convert_row(static_cast<const Half*>(view.data), to, count);
  else
    convert_row(static_cast<const BFloat16*>(view.data), to, count);
}

void narrow(const float* from, std::int64_t count, const View& view) {
  if (view.dtype == DType::f16)
    convert_row(from, static_cast<Half*>(view.data), count);
  else
    convert_row(from, static_cast<BFloat16*>(view.data), count);
}

}  // namespace lockstep::kernels::host
