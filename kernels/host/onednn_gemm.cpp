#include "lockstep/kernels/host/onednn.h"

#if defined(LOCKSTEP_HAVE_ONEDNN)

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "lockstep/kernels/host/one_thread.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"

namespace lockstep::kernels::host {
namespace {

struct Layout {
  const float* data;
  char transposed;
  std::int64_t leading;
};

Layout make_layout(const Matrix<float>& m, Scratch& scratch) {
  if ((m.column_stride == 1 || m.columns == 1) && m.row_stride >= m.columns) return {m.data, 'N', m.row_stride};
  if ((m.row_stride == 1 || m.rows == 1) && m.column_stride >= m.rows) return {m.data, 'T', m.column_stride};
  if (m.rows == 1 && m.column_stride == 1) return {m.data, 'N', m.columns};
  if (m.columns == 1 && m.row_stride == 1) return {m.data, 'T', m.rows};
  float* packed = scratch.take<float>(m.rows * m.columns);
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t j = 0; j < m.columns; ++j)
      packed[i * m.columns + j] = m.data[i * m.row_stride + j * m.column_stride];
  return {packed, 'N', m.columns};
}

}  // namespace

bool onednn_gemm(const Matrix<float>& a, const Matrix<float>& b, float* c, std::int64_t c_stride, float alpha,
                 float beta) {
  Scratch scratch;
  const Layout la = make_layout(a, scratch), lb = make_layout(b, scratch);
  const lockstep::detail::ForeignCall call;
  if (!call) return false;
  const OneThread one_thread;
  const dnnl_status_t status = dnnl_sgemm(la.transposed, lb.transposed, a.rows, b.columns, a.columns, alpha, la.data,
                                          la.leading, lb.data, lb.leading, beta, c, std::max(c_stride, b.columns));
  if (status != dnnl_success)
    lockstep::detail::fail<Error>("[matmul] oneDNN failed with status ", static_cast<int>(status));
  return true;
}

}  // namespace lockstep::kernels::host

#else

namespace lockstep::kernels::host {

bool onednn_gemm(const Matrix<float>&, const Matrix<float>&, float*, std::int64_t, float, float) { return false; }

}  // namespace lockstep::kernels::host

#endif
