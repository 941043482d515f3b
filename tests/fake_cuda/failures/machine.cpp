// Host devices, and CUDA devices on the fake runtime, for the failure drill.
#include "drill/failures/machine.h"

#include "fake_cuda/checked_table.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/library_retained.h"
#include "lockstep/kernels/api.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"

namespace failures {

std::string why_no_fake_nccl() { return why_no_nccl(); }

void set_up_devices(Layout layout) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  configure_host({.devices = kRanks, .memory_bytes = {kBytes}});
  const bool cuda = layout == Layout::nccl;
  fake_cuda::reset_from_environment({.devices = cuda ? 1 : 0, .memory_bytes = {kBytes}, .multiprocessors = {2}});
  if (!cuda) return;
  kernels::detail::install_table(DeviceType::cuda, fake_cuda::checked_table());
  fake_cuda::keep_at_end(fake_cuda::library_retained);
}

// Every process sees one GPU alone.
Device device_of(const Cell& cell, int rank) {
  return cell.layout == Layout::nccl ? Device::cuda(0) : Device::host(rank);
}

std::unique_ptr<Communicator> make_ranks(Layout layout, const std::shared_ptr<Store>& store, const std::string& group,
                                         int rank, int size, Device device, Milliseconds timeout) {
  if (layout == Layout::nccl)
    return make_nccl_communicator(make_prefix_store(store, group), rank, size, device, {.timeout = timeout});
  return make_process_communicator(store, rank, size, device, {.timeout = timeout, .name = group});
}

std::string broken_rules(Layout layout, const std::string& expected) {
  if (layout != Layout::nccl) return "";
  fake_cuda::check_end();
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures())
    if (fake_cuda::name_of(failure.rule) != expected) return fake_cuda::to_string(failure);
  return "";
}

}  // namespace failures
