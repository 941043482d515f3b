#include "lockstep/kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "lockstep/kernels/cuda/cublas_lt.h"
#include "lockstep/kernels/cuda/first_call.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/workspace.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::kernels::cuda {
namespace {

// What cuBLASLt may ask for: its own advice for Hopper, enough for what is older.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// A column-major matrix as cuBLASLt sees it: `rows` x `columns` in memory, transposed before use or not.
struct Operand {
  const void* data;
  std::int64_t rows, columns, leading, batch_stride;
  bool transposed;
};

Operand make_operand(const GemmMatrix& m) {
  if (m.row_stride == 1 || m.rows == 1) {
    const std::int64_t leading = m.columns == 1 ? m.rows : m.column_stride;
    if (leading >= m.rows && (m.rows == 1 || m.row_stride == 1))
      return {m.data, m.rows, m.columns, leading, m.batch_stride, false};
  }
  return {m.data, m.columns, m.rows, m.rows == 1 ? m.columns : m.row_stride, m.batch_stride, true};
}

int alignment_of(const void* data) {  // at most 256
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  for (int alignment = 256; alignment > 1; alignment /= 2)
    if (address % static_cast<std::uintptr_t>(alignment) == 0) return alignment;
  return 1;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t epilogue_of(const Gemm& g) {
  switch (g.activation) {
    case Activation::relu:
      return g.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu_tanh:
      return g.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default:
      return g.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

// All that the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 20>;

// A product of certain sizes and layouts: cuBLASLt's descriptions and its choice.
struct Plan {
  const CublasLt& blas;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulHeuristicResult_t choice{};
  const bool fused;  // with the bias and the activation, if there are any
  bool has_run = false;

  Plan(const CublasLt& table, bool with_epilogue) : blas(table), fused(with_epilogue) {}
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    if (a) blas.layout_destroy(a);
    if (b) blas.layout_destroy(b);
    if (c) blas.layout_destroy(c);
    if (desc) blas.desc_destroy(desc);
  }
};

// What a logical device has for products. The lock is held while a product is described and enqueued, never while
// anything waits.
struct Engine {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

Engine& engine_of(Device device) {
  static constinit lockstep::detail::PerDevice<Engine> engines;
  return engines[device];
}

void create_handle(Engine& engine, Device device, const char* op) {
  if (engine.handle) return;
  check_blas(cublas_lt().create(&engine.handle), device, op, "cublasLtCreate");
}

struct Problem {
  Operand a, b;
  GemmMatrix c;  // column-major
  const Gemm& gemm;
};

// What is asked of cuBLASLt, from the whole to the least: of products of one row, with odd strides in 16 bits, or with
// an epilogue on these, it may know no algorithm.
struct Wish {
  bool fused;
  bool aligned;     // as much as the memory happens to be; else as elements are
  bool exact_sums;  // split products are added in the type that computes, never in f16 or bf16
};
constexpr Wish kWishes[] = {{true, true, true}, {false, true, true}, {false, false, true}, {false, false, false}};

std::unique_ptr<Plan> describe(const Problem& p, bool fused, Device device, const char* op) {
  const CublasLt& blas = cublas_lt();
  auto plan = std::make_unique<Plan>(blas, fused);
  const Gemm& g = p.gemm;
  const bool wide = g.in == DType::f64;
  const cublasComputeType_t compute = wide                                   ? CUBLAS_COMPUTE_64F
                                      : g.in == DType::f32 && tf32_allowed() ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                             : CUBLAS_COMPUTE_32F;
  check_blas(blas.desc_create(&plan->desc, compute, wide ? CUDA_R_64F : CUDA_R_32F), device, op,
             "cublasLtMatmulDescCreate");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check_blas(blas.desc_set(plan->desc, attribute, &value, sizeof value), device, op,
               "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  const cublasLtEpilogue_t epilogue = epilogue_of(g);
  if (fused && epilogue != CUBLASLT_EPILOGUE_DEFAULT) set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (fused && g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
  const auto layout = [&](cublasLtMatrixLayout_t& to, DType dtype, std::int64_t rows, std::int64_t columns,
                          std::int64_t leading, std::int64_t batch_stride) {
    check_blas(blas.layout_create(&to, type_of(dtype), static_cast<std::uint64_t>(rows),
                                  static_cast<std::uint64_t>(columns), leading),
               device, op, "cublasLtMatrixLayoutCreate");
    if (g.batches == 1) return;
    const auto batches = static_cast<std::int32_t>(g.batches);
    check_blas(blas.layout_set(to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches), device, op,
               "cublasLtMatrixLayoutSetAttribute");
    check_blas(blas.layout_set(to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof batch_stride),
               device, op, "cublasLtMatrixLayoutSetAttribute");
  };
  layout(plan->a, g.in, p.a.rows, p.a.columns, p.a.leading, p.a.batch_stride);
  layout(plan->b, g.in, p.b.rows, p.b.columns, p.b.leading, p.b.batch_stride);
  layout(plan->c, g.out, p.c.rows, p.c.columns, p.c.column_stride, p.c.batch_stride);
  return plan;
}

// False where cuBLASLt knows no algorithm.
bool choose(Plan& plan, const Problem& p, const Wish& wish, const Engine& engine, Device device, const char* op) {
  const CublasLt& blas = plan.blas;
  const Gemm& g = p.gemm;
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(blas.preference_create(&preference), device, op, "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return blas.preference_set(preference, attribute, &value, sizeof value);
  };
  // Views begin anywhere: without this, cuBLASLt assumes 256 bytes.
  const auto alignment = [&](const void* data, DType dtype) {
    return static_cast<std::uint32_t>(wish.aligned ? alignment_of(data) : static_cast<int>(size_of(dtype)));
  };
  const std::uint32_t c = alignment(p.c.data, g.out);
  const std::uint32_t d = plan.fused && g.bias ? std::min(c, alignment(g.bias, g.out)) : c;
  cublasStatus_t status = prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  for (const auto& [attribute, value] :
       {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.a.data, g.in)},
        std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.b.data, g.in)},
        std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c},
        std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d}})
    if (status == CUBLAS_STATUS_SUCCESS) status = prefer(attribute, value);
  const auto reductions = static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  if (status == CUBLAS_STATUS_SUCCESS && wish.exact_sums)
    status = prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  const char* call = "cublasLtMatmulPreferenceSetAttribute";
  int found = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    call = "cublasLtMatmulAlgoGetHeuristic";
    status =
        blas.heuristic(engine.handle, plan.desc, plan.a, plan.b, plan.c, plan.c, preference, 1, &plan.choice, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) status = CUBLAS_STATUS_SUCCESS, found = 0;
  }
  blas.preference_destroy(preference);
  check_blas(status, device, op, call);
  return found > 0;
}

std::unique_ptr<Plan> make_plan(const Problem& p, const Engine& engine, Device device, const char* op) {
  for (const Wish& wish : kWishes) {
    std::unique_ptr<Plan> plan = describe(p, wish.fused, device, op);
    if (choose(*plan, p, wish, engine, device, op)) return plan;
  }
  // Of a device that is lost it says the same. This call says what befell it, and asks for nothing.
  std::size_t free = 0, total = 0;
  LOCKSTEP_CUDA(device, cudaMemGetInfo(&free, &total));
  const Gemm& g = p.gemm;
  throw NotSupported(cat("[", op, "] expected a product that cuBLASLt has an algorithm for, got ", g.batches, " of ",
                         g.a.rows, " x ", g.a.columns, " by ", g.b.rows, " x ", g.b.columns, " in ", g.in, " (", device,
                         ")"));
}

// Whether the bias and the activation are in it.
bool multiply(const Stream& stream, const char* op, const Problem& p) {
  const Device device = stream.device();
  const Gemm& g = p.gemm;
  Engine& engine = engine_of(device);
  const Key key{static_cast<std::int64_t>(g.in),
                static_cast<std::int64_t>(g.out),
                static_cast<std::int64_t>(epilogue_of(g)),
                p.a.rows,
                p.a.columns,
                p.a.leading,
                p.a.batch_stride,
                p.a.transposed,
                p.b.rows,
                p.b.columns,
                p.b.leading,
                p.b.batch_stride,
                p.b.transposed,
                p.c.column_stride,
                p.c.batch_stride,
                g.batches,
                alignment_of(p.a.data),
                alignment_of(p.b.data),
                alignment_of(p.c.data),
                g.bias ? alignment_of(g.bias) : 0};
  const auto find_plan = [&]() -> Plan& {
    create_handle(engine, device, op);
    constexpr std::size_t kMost = 4096;  // programs with ever new sizes start over
    if (engine.plans.size() >= kMost && !engine.plans.contains(key)) engine.plans.clear();
    std::unique_ptr<Plan>& plan = engine.plans[key];
    if (!plan) plan = make_plan(p, engine, device, op);
    return *plan;
  };
  const auto has_run = [&] {
    const auto found = engine.plans.find(key);
    return found != engine.plans.end() && found->second && found->second->has_run;
  };
  std::size_t bytes;
  {
    const FirstCallLock lock(engine.mutex, has_run);
    bytes = find_plan().choice.workspaceSize;
  }
  // Taken without the lock, since the allocator may have to wait for the device.
  const Workspace workspace(stream, bytes);
  const float alpha32 = static_cast<float>(g.alpha), beta32 = static_cast<float>(g.beta);
  const bool wide = g.in == DType::f64;
  const void* alpha = wide ? static_cast<const void*>(&g.alpha) : &alpha32;
  const void* beta = wide ? static_cast<const void*>(&g.beta) : &beta32;
  const FirstCallLock lock(engine.mutex, has_run);
  Plan& plan = find_plan();  // again: another thread may have started over
  if (plan.fused && g.bias)
    check_blas(plan.blas.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof g.bias), device, op,
               "cublasLtMatmulDescSetAttribute");
  check_blas(
      plan.blas.matmul(engine.handle, plan.desc, alpha, p.a.data, plan.a, p.b.data, plan.b, beta, p.c.data, plan.c,
                       p.c.data, plan.c, &plan.choice.algo, workspace.data(), bytes, lockstep::cuda::native(stream)),
      device, op, "cublasLtMatmul");
  plan.has_run = true;
  return plan.fused;
}

// The bias and the activation, by kernels of their own.
void finish(const Stream& stream, const Gemm& g) {
  View c{.data = g.c.data,
         .shape = {g.batches, g.c.rows, g.c.columns},
         .strides = {g.c.batch_stride, g.c.row_stride, g.c.column_stride},
         .dtype = g.out,
         .device = stream.device(),
         .present = true};
  if (g.bias) {
    View bias = c;
    bias.data = const_cast<void*>(g.bias);
    bias.strides = {0, 0, 1};
    Kernels::enqueue(stream, BinaryArgs{.op = BinaryOp::add, .x = {c}, .y = {bias}, .out = {c}});
  }
  if (g.activation != Activation::none)
    Kernels::enqueue(stream, UnaryArgs{.op = functors::unary_op(g.activation), .in = {c}, .out = {c}});
}

}  // namespace

bool tf32_allowed() {
  static const bool allowed = lockstep::detail::environment_flag("LOCKSTEP_TF32");
  return allowed;
}

bool has_unit_stride(const GemmMatrix& m) {
  const bool row_major = (m.column_stride == 1 || m.columns == 1) && (m.rows == 1 || m.row_stride >= m.columns);
  const bool column_major = (m.row_stride == 1 || m.rows == 1) && (m.columns == 1 || m.column_stride >= m.rows);
  return row_major || column_major;
}

bool can_activate(const Gemm& g) {
  // Whether its ReLU hands NaN on, as all of ours do, its documents do not say.
  return g.in != DType::f64 && g.activation == Activation::gelu_tanh;
}

bool can_add_bias(const Gemm& g) {
  // Of a column-major result the library adds one element per row: of ours, one per column where it is row-major.
  constexpr std::uintptr_t kBiasAlignment = 16;
  return g.in != DType::f64 && reinterpret_cast<std::uintptr_t>(g.bias) % kBiasAlignment == 0 &&
         (g.c.column_stride == 1 || g.c.columns == 1) && (g.c.rows == 1 || g.c.row_stride >= g.c.columns);
}

void gemm(const Stream& stream, const char* op, const Gemm& whole) {
  const lockstep::cuda::CurrentDevice current(stream.device());
  // More batches than a grid has in its third dimension go in several calls.
  constexpr std::int64_t kMostBatches = 65535;
  const auto advance = [](GemmMatrix& m, DType dtype, std::int64_t batches) {
    m.data = static_cast<std::byte*>(m.data) + batches * m.batch_stride * static_cast<std::int64_t>(size_of(dtype));
  };
  for (std::int64_t first = 0; first < whole.batches; first += kMostBatches) {
    Gemm g = whole;
    g.batches = std::min(kMostBatches, whole.batches - first);
    advance(g.a, g.in, first), advance(g.b, g.in, first), advance(g.c, g.out, first);
    // The library thinks in columns: a row-major result is the transposed product.
    const bool row_major =
        (g.c.column_stride == 1 || g.c.columns == 1) && (g.c.rows == 1 || g.c.row_stride >= g.c.columns);
    GemmMatrix c = row_major ? g.c.transposed() : g.c;
    if (c.columns == 1) c.column_stride = c.rows;
    const bool fused =
        multiply(stream, op,
                 row_major ? Problem{make_operand(g.b.transposed()), make_operand(g.a.transposed()), c, g}
                           : Problem{make_operand(g.a), make_operand(g.b), c, g});
    if (!fused) finish(stream, g);
  }
}

void prepare_gemm(Device device) {
  if (!has_cublas_lt()) return;  // a program that never multiplies works without
  const lockstep::cuda::CurrentDevice current(device);
  {
    Engine& engine = engine_of(device);
    const lockstep::detail::GrowthLock alone;
    const std::lock_guard lock(engine.mutex);
    create_handle(engine, device, "prepare");
  }
  release(allocate(default_stream(device), kWorkspaceBytes));  // stays in the cache
}

int retained_handles(Device device) {
  Engine& engine = engine_of(device);
  const std::lock_guard lock(engine.mutex);
  int count = engine.handle != nullptr;
  for (const auto& [key, plan] : engine.plans) {
    if (plan) count += 4;  // the operation and three layouts
  }
  return count;
}

}  // namespace lockstep::kernels::cuda
