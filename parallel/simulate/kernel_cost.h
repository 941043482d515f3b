// How long a kernel takes on a device that is not there.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/parallel/simulate/machine.h"

namespace lockstep::simulate {

// Whose kernels: those of this library as they are (estimated from their machine code), or those of the vendor's
// libraries, which reach the efficiencies of the machine file.
enum class KernelSpeed { own, vendor };

struct KernelWork {
  std::string_view name, dtype;  // as recorded: "matmul", "f32"
  double bytes_read = 0, bytes_written = 0, flops = 0;
  std::vector<std::vector<std::int64_t>> shapes;
};

// Seconds that it runs, alone on the device: the longest of the type's floor, its operations at the speed that the
// model of products gives, and its bytes at the memory's rate, which short kernels do not reach.
double kernel_seconds(const GpuType& type, const KernelWork& work, KernelSpeed speed);

// The product of an m x k with a k x n matrix, batch of them, by whole tiles and whole waves (NVIDIA, Matrix
// Multiplication Background User's Guide). Seconds, without the floor.
double gemm_seconds(const GpuType& type, std::string_view dtype, double m, double n, double k, double batch = 1);

}  // namespace lockstep::simulate
