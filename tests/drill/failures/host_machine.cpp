// Where there is no fake CUDA: host devices alone.
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "machine.h"

namespace failures {

std::string why_no_fake_nccl() { return "this build has no CUDA, or no nccl.h"; }

void set_up_devices(Layout) { configure_host({.devices = kRanks, .memory_bytes = {std::size_t{256} << 20}}); }
Device device_of(const Cell&, int rank) { return Device::host(rank); }

std::unique_ptr<Communicator> make_ranks(Layout, const std::shared_ptr<Store>& store, const std::string& group,
                                         int rank, int size, Device device, Milliseconds timeout) {
  return make_process_communicator(store, rank, size, device, {.timeout = timeout, .name = group});
}

std::string broken_rules(Layout, const std::string&) { return ""; }

}  // namespace failures
