#include "lockstep/kernels/api.h"

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/record/recorder.h"

namespace lockstep::kernels {
namespace {

const KernelTable* installed_tables[lockstep::detail::kDeviceTypes] = {};  // null: the backend's own

const KernelTable& own_table(DeviceType type) {
  switch (type) {
    case DeviceType::cpu:
      break;
    case DeviceType::host:
      if (lockstep::detail::Recorder::active()) [[unlikely]]
        return record::kernel_table();
      break;
    case DeviceType::cuda:
      return cuda::kernel_table();
  }
  return host::kernel_table();
}

}  // namespace

const KernelTable& table(DeviceType type) {
  if (const KernelTable* installed = installed_tables[static_cast<int>(type)]) [[unlikely]]
    return *installed;
  return own_table(type);
}

void prepare(Device device) {
  if (const auto create = table(device.type()).prepare) create(device);
}

namespace detail {

void install_table(DeviceType type, const KernelTable& table) { installed_tables[static_cast<int>(type)] = &table; }

void fail_device(const char* op, const View& view, Device stream_device) {
  lockstep::detail::fail<InvalidArgument>("[", op, "] expected every tensor on ", stream_device,
                                          ", the device of the stream, got ", view.dtype, " ", view.shape, " on ",
                                          view.device);
}

void fail_missing(const char* op, DType dtype, Device device) {
  lockstep::detail::fail<NotSupported>("[", op, "] expected an operation that ", device, " has, got ", op, " of ",
                                       dtype);
}

void add_use(std::vector<MemoryUse>& uses, const View& view, bool reads, bool writes) {
  if (!view.present) return;
  static_assert(MemoryUse::kMaxRank == kMaxRank);
  MemoryUse& use = uses.emplace_back();
  use.data = view.data;
  use.device = view.device;
  use.reads = reads;
  use.writes = writes;
  use.element_bytes = size_of(view.dtype);
  use.rank = view.rank();
  for (int d = 0; d < use.rank; ++d) {
    use.sizes[d] = view.shape[d];
    use.byte_strides[d] = view.strides[d] * static_cast<std::int64_t>(use.element_bytes);
  }
}

}  // namespace detail

}  // namespace lockstep::kernels
