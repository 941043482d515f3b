#include "lockstep/kernels/host/widen.h"

#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {
namespace {

template <class From, class To>
void convert(const From* from, To* to, std::int64_t count) {
  for_pieces(count, piece_rows(count, sizeof(float) + sizeof(Half), kPieceBytes),
             [=](std::int64_t begin, std::int64_t end) { convert_row(from + begin, to + begin, end - begin); });
}

}  // namespace

void widen(const View& view, std::int64_t count, float* to) {
  if (view.dtype == DType::f16)
    convert(static_cast<const Half*>(view.data), to, count);
  else
    convert(static_cast<const BFloat16*>(view.data), to, count);
}

void narrow(const float* from, std::int64_t count, const View& view) {
  if (view.dtype == DType::f16)
    convert(from, static_cast<Half*>(view.data), count);
  else
    convert(from, static_cast<BFloat16*>(view.data), count);
}

}  // namespace lockstep::kernels::host
