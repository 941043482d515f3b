#include "lockstep/parallel/simulate/kernel_cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/kernels/op_names.h"

namespace lockstep::simulate {
namespace {

bool sixteen_bits(std::string_view dtype) { return dtype == "f16" || dtype == "bf16"; }

// What kernels of this library reach of what a copy does, 32 bits and 16 bits: estimated from their machine code for
// Hopper, not measured. Products and convolutions have a share of the vendor's speed instead.
struct Share {
  std::string_view name;
  double f32, f16;
};
constexpr Share kOwn[] = {
    {"unary", 0.87, 0.68},
    {"binary", 0.87, 0.68},
    {"cast", 0.87, 0.68},
    {"where", 0.87, 0.68},
    {"fill", 0.87, 0.68},
    {"unscale", 0.87, 0.68},
    {"reduce", 0.78, 0.45},
    {"arg_reduce", 0.5, 0.3},
    {"softmax", 0.35, 0.18},
    {"softmax_grad", 0.35, 0.18},
    {"rms_norm", 0.35, 0.18},
    {"rms_norm_grad", 0.35, 0.2},
    {"group_norm", 0.35, 0.18},
    {"group_norm_grad", 0.35, 0.2},
    {"batch_norm", 0.65, 0.4},
    {"batch_norm_grad", 0.65, 0.4},
    {"cross_entropy", 0.35, 0.18},
    {"cross_entropy_grad", 0.35, 0.18},
    {"max_pool2d", 0.32, 0.32},
    {"avg_pool2d", 0.32, 0.32},
    {"avg_pool2d_grad", 0.05, 0.05},
    {"max_unpool2d", 0.32, 0.32},
    {"index_select", 0.5, 0.28},
    {"gather", 0.5, 0.28},
    {"index_add", 0.15, 0.15},
    {"scatter_add", 0.15, 0.15},
    {"argsort", 0.03, 0.03},
    {"random", 0.4, 0.4},
    {"sgd", 0.78, 0.6},
    {"adam", 0.78, 0.6},
    {"matmul", 0.97, 0.97},
    {"conv2d", 0.45, 0.15},
    {"conv2d_grad_input", 0.12, 0.05},
    {"conv2d_grad_weight", 0.3, 0.12},
};
constexpr Share kOtherOwn{"", 0.6, 0.4};
// attention computes with neither tensor cores nor fused additions: about 4 and 3.5 TFLOP/s of H200's 67.
constexpr double kOwnAttention = 0.06, kOwnAttentionGrad = 0.052;

template <class Op>
bool names(std::string_view name) {
  for (std::size_t i = 0; i < kCountOf<Op>; ++i)
    if (name == op_name(static_cast<Op>(i))) return true;
  return false;
}

// Recordings have the names of operations, many of which share a kernel.
std::string_view kernel_of(std::string_view name) {
  if (names<UnaryOp>(name)) return "unary";
  if (names<BinaryOp>(name)) return "binary";
  if (names<ReduceOp>(name)) return "reduce";
  if (names<ArgReduceOp>(name)) return "arg_reduce";
  if (names<RandomKind>(name)) return "random";
  return name;
}

double own_share(std::string_view operation, std::string_view dtype) {
  const std::string_view name = kernel_of(operation);
  const auto* found =
      std::find_if(std::begin(kOwn), std::end(kOwn), [&](const Share& each) { return each.name == name; });
  const Share& share = found == std::end(kOwn) ? kOtherOwn : *found;
  return sixteen_bits(dtype) ? share.f16 : share.f32;
}

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

// Operations per second at the peak. A dtype without units of its own runs as f32.
double peak(const GpuType& type, std::string_view dtype, bool product) {
  std::string name(dtype);
  if (product && name == "f32" && type.tf32) name = "tf32";
  if (type.flops.count(name) == 0 && name == "f16") name = "bf16";
  const auto found = type.flops.find(name);
  return found == type.flops.end() ? type.flops.at("f32") : found->second;
}

double product_seconds(const GpuType& type, const KernelWork& work) {
  if (!work.shapes.empty() && work.shapes.back().size() >= 2) {
    const std::vector<std::int64_t>& result = work.shapes.back();
    double batch = 1;
    for (std::size_t i = 0; i + 2 < result.size(); ++i) batch *= static_cast<double>(result[i]);
    const auto m = static_cast<double>(result[result.size() - 2]), n = static_cast<double>(result.back());
    if (batch * m * n > 0) return gemm_seconds(type, work.dtype, m, n, work.flops / (2 * batch * m * n), batch);
  }
  return work.flops / (peak(type, work.dtype, true) * type.gemm.efficiency);
}

}  // namespace

double gemm_seconds(const GpuType& type, std::string_view dtype, double m, double n, double k, double batch) {
  if (m * n * k * batch == 0) return 0;
  // Libraries have smaller tiles for small products, which reach less.
  struct Tile {
    double m, n, efficiency;
  };
  const double tile_m = type.gemm.tile_m, tile_n = type.gemm.tile_n;
  double best = 0;
  for (const Tile& tile :
       {Tile{tile_m, tile_n, 1}, Tile{tile_m, tile_n / 2, 0.9}, Tile{tile_m / 2, tile_n / 4, 0.75}}) {
    const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n) * batch;
    const double waves = std::ceil(tiles / type.multiprocessors);
    const double full = tiles / (waves * type.multiprocessors);
    const double edge = m * n * batch / (tiles * tile.m * tile.n);
    best = std::max(best, tile.efficiency * full * edge);
  }
  const double efficiency = type.gemm.efficiency * best * k / (k + type.gemm.half_k);
  return 2 * m * n * k * batch / (peak(type, dtype, true) * efficiency);
}

double kernel_seconds(const GpuType& type, const KernelWork& work, KernelSpeed speed) {
  const bool own = speed == KernelSpeed::own;
  const bool matmul = work.name == "matmul", convolution = starts_with(work.name, "conv2d");
  const bool attention = starts_with(work.name, "attention");
  double compute = 0, memory_share = 1;
  if (matmul) {
    compute = product_seconds(type, work);
  } else if (convolution) {
    compute = work.flops / (peak(type, work.dtype, true) * type.gemm.efficiency * type.gemm.convolution);
  } else if (attention) {
    compute = own ? work.flops / (type.flops.at("f32") * (work.name == "attention" ? kOwnAttention : kOwnAttentionGrad))
                  : work.flops / (peak(type, work.dtype, true) * type.gemm.efficiency * type.gemm.convolution);
  } else {
    compute = work.flops / peak(type, work.dtype, false);
    if (own) memory_share = own_share(work.name, work.dtype);
  }
  if (own && (matmul || convolution)) compute /= own_share(work.name, work.dtype);
  const double memory =
      (work.bytes_read + work.bytes_written) / (type.memory_bytes_per_second * type.memory_efficiency * memory_share);
  return type.kernel_floor + std::max(compute, memory);
}

}  // namespace lockstep::simulate
