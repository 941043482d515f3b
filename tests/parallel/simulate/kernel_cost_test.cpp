// What kernels cost, against closed forms and published figures.
#include "lockstep/parallel/simulate/kernel_cost.h"

#include <string>

#include "support/catch.h"

using namespace lockstep::simulate;

namespace {

GpuType type(const char* file) {
  return load_machine(std::string(LOCKSTEP_MACHINES_FOLDER) + "/" + file + ".json").gpu_types.at(0);
}

KernelWork product(double m, double n, double k, const char* dtype = "bf16") {
  return {"matmul",
          dtype,
          0,
          0,
          2 * m * n * k,
          {{static_cast<std::int64_t>(m), static_cast<std::int64_t>(k)},
           {static_cast<std::int64_t>(k), static_cast<std::int64_t>(n)},
           {static_cast<std::int64_t>(m), static_cast<std::int64_t>(n)}}};
}

}  // namespace

TEST_CASE("products go by whole waves of tiles") {
  GpuType gpu = type("8xh200-nvswitch");
  gpu.gemm = {.efficiency = 1, .tile_m = 128, .tile_n = 256, .half_k = 0};
  const auto efficiency = [&](double m, double n) {
    return 2 * m * n * 4096 / gemm_seconds(gpu, "bf16", m, n, 4096) / gpu.flops.at("bf16");
  };
  CHECK(efficiency(4096, 4096) == Approx(512.0 / (4 * 132)));  // 3.88 waves
  CHECK(efficiency(2048, 2048) == Approx(128.0 / 132));
  // 162 tiles are 2 waves at 61%: halves of them, 324, are 3 waves at 82% of nine tenths.
  CHECK(efficiency(2304, 2304) == Approx(0.9 * 324.0 / (3 * 132)));
  gpu.gemm.half_k = 256;
  CHECK(2 * 2048.0 * 2048 * 256 / gemm_seconds(gpu, "bf16", 2048, 2048, 256) / gpu.flops.at("bf16") ==
        Approx(0.5 * 128 / 132));
  CHECK(gemm_seconds(gpu, "bf16", 0, 8, 8) == 0);
}

TEST_CASE("large products come near the best published ones") {
  // ml-engineering's accelerator table: H200 794.5, A100 271 TFLOP/s.
  const auto rate = [](const char* file, double m, double n, double k) {
    return 2 * m * n * k / kernel_seconds(type(file), product(m, n, k), KernelSpeed::vendor) / 1e12;
  };
  CHECK(rate("8xh200-nvswitch", 2048, 2048, 13312) == Approx(794.5).epsilon(0.1));
  CHECK(rate("dgx-a100", 6912, 16384, 2048) == Approx(271).epsilon(0.15));
}

TEST_CASE("kernels bound by memory ramp up to its rate") {
  const GpuType gpu = type("8xh200-nvswitch");
  const auto seconds = [&](double bytes) {
    return kernel_seconds(gpu, {"binary", "f32", bytes * 2 / 3, bytes / 3, bytes / 12, {}}, KernelSpeed::vendor);
  };
  CHECK(seconds(0) == Approx(2e-6));
  CHECK(seconds(12e9) == Approx(2e-6 + 12e9 / (4.8e12 * 0.88)));
  const double half = 2e-6 * 4.8e12 * 0.88;  // 8 MB: half of the rate
  CHECK(half / seconds(half) == Approx(4.8e12 * 0.88 / 2));
}

TEST_CASE("kernels of the library have their share of the vendor's speed") {
  const GpuType gpu = type("8xh200-nvswitch");
  const auto ratio = [&](const KernelWork& work) {
    return (kernel_seconds(gpu, work, KernelSpeed::own) - gpu.kernel_floor) /
           (kernel_seconds(gpu, work, KernelSpeed::vendor) - gpu.kernel_floor);
  };
  CHECK(ratio({"softmax", "f32", 1e9, 1e9, 0, {}}) == Approx(1 / 0.35));
  CHECK(ratio({"softmax", "bf16", 1e9, 1e9, 0, {}}) == Approx(1 / 0.18));
  CHECK(ratio(product(4096, 4096, 4096)) == Approx(1 / 0.97));
  CHECK(ratio({"conv2d_grad_input", "bf16", 1e6, 1e6, 1e12, {}}) == Approx(1 / 0.05));
  // 550 GFLOP of attention take about 137 ms: no tensor cores.
  CHECK(kernel_seconds(gpu, {"attention", "bf16", 1e6, 1e6, 550e9, {}}, KernelSpeed::own) ==
        Approx(0.137).epsilon(0.02));
}

TEST_CASE("f32 products use the units that the machine file says") {
  const GpuType hopper = type("8xh200-nvswitch"), ampere = type("dgx-a100");
  CHECK(gemm_seconds(hopper, "f32", 4096, 4096, 4096) > 10 * gemm_seconds(hopper, "bf16", 4096, 4096, 4096));
  CHECK(gemm_seconds(ampere, "f32", 4096, 4096, 4096) == Approx(2 * gemm_seconds(ampere, "bf16", 4096, 4096, 4096)));
  const GpuType volta = type("dgx-1v");  // has no units for bf16
  CHECK(gemm_seconds(volta, "bf16", 4096, 4096, 4096) == Approx(gemm_seconds(volta, "f32", 4096, 4096, 4096)));
}
