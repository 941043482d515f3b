// The devices of the layers' tests on the fake: 8 CUDA devices, as unequal as the host devices of these tests are.
#include "fake_cuda/checked_table.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/library_retained.h"
#include "lockstep/kernels/api.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/log.h"
#include "support/devices.h"

namespace {

constexpr std::size_t kMemory = std::size_t{1} << 30;

const bool configured =
    (fake_cuda::reset_from_environment(
         {.memory_bytes = {kMemory, kMemory, kMemory, kMemory, kMemory, kMemory, kMemory / 2, kMemory},
          .multiprocessors = {2, 2, 2, 2, 2, 2, 2, 1}}),
     fake_cuda::keep_at_end(fake_cuda::library_retained), fake_cuda::tests_keep_device = true,
     lockstep::configure_host({.devices = 2}),
     lockstep::kernels::detail::install_table(lockstep::DeviceType::cuda, fake_cuda::checked_table()),
     lockstep::set_log_level(lockstep::LogLevel::error), true);

}  // namespace

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::cuda; }

}  // namespace support
