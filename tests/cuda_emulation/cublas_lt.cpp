// cuBLASLt as plain loops: what the products of the emulated kernels go to. Refuses what the library refuses.
#include "cuda_emulation/cublas_lt.h"

#include <cublasLt.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "lockstep/kernels/half.h"

namespace {

using lockstep::BFloat16;
using lockstep::Half;

// The epilogues are bits.
constexpr std::uint32_t kRelu = CUBLASLT_EPILOGUE_RELU, kGelu = CUBLASLT_EPILOGUE_GELU, kBias = CUBLASLT_EPILOGUE_BIAS;

struct Desc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transposed_a = 0, transposed_b = 0;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t batches = 1;
  std::int64_t batch_stride = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
  bool exact_sums = false;
};
template <class T, class Handle>
T& as(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}

double read(const void* data, cudaDataType_t type, std::int64_t at) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[at];
    case CUDA_R_16F:
      return static_cast<float>(static_cast<const Half*>(data)[at]);
    case CUDA_R_16BF:
      return static_cast<float>(static_cast<const BFloat16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}
void write(void* data, cudaDataType_t type, std::int64_t at, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[at] = value;
      break;
    case CUDA_R_16F:
      static_cast<Half*>(data)[at] = Half(static_cast<float>(value));
      break;
    case CUDA_R_16BF:
      static_cast<BFloat16*>(data)[at] = BFloat16(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[at] = static_cast<float>(value);
  }
}

bool consistent(const Desc& d, const Layout& a, const Layout& b, const Layout& c) {
  const std::uint64_t m = d.transposed_a ? a.columns : a.rows, k = d.transposed_a ? a.rows : a.columns;
  const std::uint64_t n = d.transposed_b ? b.rows : b.columns, other_k = d.transposed_b ? b.columns : b.rows;
  const auto sound = [&](const Layout& l) {
    return l.rows > 0 && l.columns > 0 && l.leading >= static_cast<std::int64_t>(l.rows) && l.batches == c.batches;
  };
  if (!sound(a) || !sound(b) || !sound(c) || k != other_k || c.rows != m || c.columns != n || a.type != b.type)
    return false;
  if (c.batches > 1 && c.batch_stride == 0) return false;
  const bool wide = a.type == CUDA_R_64F;
  if (wide != (d.compute == CUBLAS_COMPUTE_64F) || wide != (d.scale == CUDA_R_64F)) return false;
  if (c.type != a.type && !(c.type == CUDA_R_32F && !wide)) return false;
  if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  const bool known = (d.epilogue & ~(kRelu | kGelu | kBias)) == 0 && (d.epilogue & (kRelu | kGelu)) != (kRelu | kGelu);
  return known && !wide && (!(d.epilogue & kBias) || d.bias != nullptr);
}

bool aligned(const void* data, std::uint32_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

}  // namespace

namespace emulation {
std::vector<Asked> asked;
std::function<bool(const Asked&)> refuses;
}  // namespace emulation

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int object;
  *handle = reinterpret_cast<cublasLtHandle_t>(&object);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &as<Desc>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  const auto set = [&](auto& to) {
    if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(as<Desc>(desc).transposed_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(as<Desc>(desc).transposed_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(as<Desc>(desc).epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(as<Desc>(desc).bias);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &as<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  Layout& l = as<Layout>(layout);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof l.batches)
    return std::memcpy(&l.batches, value, bytes), CUBLAS_STATUS_SUCCESS;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof l.batch_stride)
    return std::memcpy(&l.batch_stride, value, bytes), CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &as<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  Preference& p = as<Preference>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8)
    return std::memcpy(&p.workspace, value, 8), CUBLAS_STATUS_SUCCESS;
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == 4) {
    std::uint32_t schemes = 0;
    std::memcpy(&schemes, value, 4);
    p.exact_sums = schemes == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return CUBLAS_STATUS_SUCCESS;
  }
  const int which = attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (which < 0 || which > 3 || bytes != 4) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&p.alignment[which], value, 4);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (c != d || !consistent(as<Desc>(desc), as<Layout>(a), as<Layout>(b), as<Layout>(c)))
    return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  const Preference& p = as<Preference>(preference);
  emulation::Asked asked{.epilogue = as<Desc>(desc).epilogue != CUBLASLT_EPILOGUE_DEFAULT, .exact_sums = p.exact_sums};
  std::copy_n(p.alignment, 4, asked.alignment);
  emulation::asked.push_back(asked);
  *found = 0;
  // As cuBLASLt says it, in one of two ways.
  if (emulation::refuses && emulation::refuses(asked))
    return asked.epilogue ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  std::memcpy(&results[0].algo, p.alignment, sizeof p.alignment);  // checked when it is used
  results[0].workspaceSize = 1024;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algo, void* workspace, size_t bytes,
                              cudaStream_t) {
  const Desc& description = as<Desc>(desc);
  const Layout &la = as<Layout>(a_layout), &lb = as<Layout>(b_layout), &lc = as<Layout>(c_layout);
  std::uint32_t alignment[4];
  std::memcpy(alignment, algo, sizeof alignment);
  if (!consistent(description, la, lb, lc) || bytes != 1024 || workspace == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (!aligned(a, alignment[0]) || !aligned(b, alignment[1]) || !aligned(c, alignment[2]) || !aligned(d, alignment[3]))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memset(workspace, 0xff, bytes);
  const bool wide = la.type == CUDA_R_64F;
  const auto number = [wide](const void* p) {
    return wide ? *static_cast<const double*>(p) : *static_cast<const float*>(p);
  };
  const double x = number(alpha), y = number(beta);
  const auto m = static_cast<std::int64_t>(lc.rows), n = static_cast<std::int64_t>(lc.columns);
  const auto k = static_cast<std::int64_t>(description.transposed_a ? la.rows : la.columns);
  for (std::int64_t batch = 0; batch < lc.batches; ++batch)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t p = 0; p < k; ++p)
          sum += read(a, la.type,
                      batch * la.batch_stride + (description.transposed_a ? p + i * la.leading : i + p * la.leading)) *
                 read(b, lb.type,
                      batch * lb.batch_stride + (description.transposed_b ? j + p * lb.leading : p + j * lb.leading));
        const std::int64_t at = batch * lc.batch_stride + i + j * lc.leading;
        double value = x * sum + (y == 0 ? 0 : y * read(c, lc.type, at));
        if (description.epilogue & kBias) value += read(description.bias, lc.type, i);
        if (description.epilogue & kRelu) value = value > 0 ? value : 0;  // no word on NaN in the documents: lost
        if (description.epilogue & kGelu)
          value *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (value + 0.044715 * value * value * value)));
        write(d, lc.type, at, value);
      }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
