// What happens when a device is first used: the backends are made, and with them the table of devices.
#include "lockstep/runtime/device_table.h"

#include <mutex>

#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/cuda/why_no_cuda.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/keep_loaded.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/record/record.h"
#include "lockstep/runtime/trace/trace_environment.h"

namespace lockstep::detail {
namespace {

struct Registry {
  std::mutex mutex;
  Backend* installed[kDeviceTypes] = {};
};

Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

}  // namespace

std::unique_lock<std::mutex> before_first_use(const char* op) {
  std::unique_lock lock(registry().mutex);
  if (the_device_table.load(std::memory_order_acquire)) {
    throw Error(cat("[", op, "] expected to be called before anything uses a device, got a call after that"));
  }
  return lock;
}

// The backends that were made stay when a later one throws (a bad environment variable), so that a second attempt
// does not make them twice.
const DeviceTable& build_device_table() {
  keep_loaded();
  Registry& registered = registry();
  std::lock_guard lock(registered.mutex);
  if (const DeviceTable* table = the_device_table.load(std::memory_order_acquire)) return *table;
  Backend*& cpu = registered.installed[static_cast<int>(DeviceType::cpu)];
  Backend*& host = registered.installed[static_cast<int>(DeviceType::host)];
  Backend*& cuda = registered.installed[static_cast<int>(DeviceType::cuda)];
  if (!cuda) cuda = make_cuda_backend();
  if (!host) host = make_host_backend(configured_host());
  if (!cpu) cpu = make_cpu_backend();

  trace::detail::start_from_environment();
  record::detail::start_from_environment();
  notice_exit();  // most often this is the thread that will end the process, whoever computes

  auto* table = new DeviceTable;
  int ordinal = 0;
  for (int type = 0; type < kDeviceTypes; ++type) {
    Backend* backend = registered.installed[type];
    table->backends[type] = backend;
    table->count[type] = backend ? backend->device_count() : 0;
    if (table->count[type] > kMaxDevices) {
      const int count = table->count[type];
      delete table;
      throw Error(cat("[all_devices] expected at most ", kMaxDevices, " ", static_cast<DeviceType>(type),
                      " devices, got ", count));
    }
    table->first[type] = ordinal;
    ordinal += table->count[type];
  }
  for (int i = 0; i < table->count[0]; ++i) table->all.push_back(Device::cpu());
  for (int i = 0; i < table->count[1]; ++i) table->all.push_back(Device::host(i));
  for (int i = 0; i < table->count[2]; ++i) table->all.push_back(Device::cuda(i));
  table->why_no_cuda = why_no_cuda;
  the_device_table.store(table, std::memory_order_release);
  return *table;
}

void install_backend(Backend& backend) {
  const auto lock = before_first_use("install_backend");
  registry().installed[static_cast<int>(backend.type())] = &backend;
}

}  // namespace lockstep::detail
