#include "lockstep/kernels/cuda/cub.cuh"

#define CCCL_DISABLE_NVTX  // the library names its ranges itself
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels::cuda {
namespace {

using Number = std::uint64_t;  // of i64 too, whose sums begin anew at the other end

// A function of CUB is called twice, at first for the scratch memory that it wants.
template <class Function>
void call(const Stream& stream, const char* op, Scratch& scratch, Function&& function) {
  const Device device = stream.device();
  const lockstep::cuda::CurrentDevice current(device);
  (void)cudaGetLastError();  // CUB takes an error that the program around us has left for one of its own
  const auto call_once = [&](void* memory, std::size_t& bytes) {
    const cudaError_t result = function(memory, bytes, lockstep::cuda::native(stream));
    if (result != cudaSuccess) lockstep::cuda::check(result, device, cat("CUB for ", op).c_str());
  };
  std::size_t bytes = 0;
  call_once(nullptr, bytes);
  call_once(scratch.take_bytes(bytes), bytes);
}

}  // namespace

void sort(const Stream& stream, const char* op, Tagged& keys, std::uint64_t*& spare, std::int64_t count, int bits,
          Scratch& scratch) {
  if (count < 2 || bits < 1) return;
  cub::DoubleBuffer<Number> both(keys.keys, spare);
  const int begin = keys.position_bits;
  call(stream, op, scratch, [&](void* memory, std::size_t& bytes, cudaStream_t native) {
    return cub::DeviceRadixSort::SortKeys(memory, bytes, both, count, begin, begin + bits, native);
  });
  keys.keys = both.Current();
  spare = both.Alternate();
}

void running_sums(const Stream& stream, const char* op, const std::int64_t* x, std::int64_t* y, std::int32_t count) {
  const trace::WorkScope scope(stream, {.name = "running sums by CUB", .kind = trace::Kind::kernel});
  const auto* const from = reinterpret_cast<const Number*>(x);
  auto* const to = reinterpret_cast<Number*>(y);
  Scratch scratch(stream);
  call(stream, op, scratch, [&](void* memory, std::size_t& bytes, cudaStream_t native) {
    return cub::DeviceScan::InclusiveSum(memory, bytes, from, to, count, native);
  });
}

// CUB has no list of its kernels. These are the names in the versions of CUDA 13.0 and 13.1; with another one CUDA
// loads them when they are first used, which may wait for what runs on the device.
void list_cub([[maybe_unused]] KernelList& list) {
#if defined(CUB_VERSION) && CUB_VERSION >= 300000 && CUB_VERSION < 300200
  namespace radix = cub::detail::radix_sort;
  namespace scan = cub::detail::scan;
  using Count = cub::detail::choose_offset_t<std::int64_t>;
  using cub::NullType;
  {
    using Policy = cub::detail::radix::policy_hub<Number, NullType, Count>::MaxPolicy;
    using AsItIs = cub::detail::identity_decomposer_t;
    constexpr auto kAscending = cub::SortOrder::Ascending;
    list.add(radix::DeviceRadixSortSingleTileKernel<Policy, kAscending, Number, NullType, Count, AsItIs>);
    list.add(radix::DeviceRadixSortHistogramKernel<Policy, kAscending, Number, Count, AsItIs>);
    list.add(radix::DeviceRadixSortExclusiveSumKernel<Policy, Count>);
    list.add(radix::DeviceRadixSortOnesweepKernel<Policy, kAscending, Number, NullType, Count, int, int, AsItIs>);
  }
  {
    using Plus = ::cuda::std::plus<>;
    using Few = cub::detail::choose_offset_t<std::int32_t>;
    using Policy = scan::policy_hub<Number, Number, Number, Few, Plus>::MaxPolicy;
    using Tiles = cub::ScanTileState<Number>;
    list.add(scan::DeviceScanInitKernel<Tiles>);
    list.add(
        scan::DeviceScanKernel<Policy, const Number*, Number*, Tiles, Plus, NullType, Few, Number, false, NullType>);
  }
  list.add(cub::detail::EmptyKernel<void>);  // whose attributes say the architecture
#endif
}

}  // namespace lockstep::kernels::cuda
