// The checked way to a kernel: `kernels::launch(stream, UnaryArgs{…})`.
#pragma once

#include <vector>

#include "lockstep/kernels/op_names.h"
#include "lockstep/kernels/table.h"
#include "lockstep/runtime/stream/declare.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep::kernels {

// The table of a device type.
LOCKSTEP_API const KernelTable& table(DeviceType type);

// Creates what kernels on the device will ever need, so that nothing is created later, while a collective may be in
// flight: a device's start-up calls it. Throws what creating it throws. Safe to call again.
LOCKSTEP_API void prepare(Device device);

namespace detail {
// Puts another table in the place of a device type's, for tests that check what is launched. Before its first use.
LOCKSTEP_API void install_table(DeviceType type, const KernelTable& table);

[[noreturn]] LOCKSTEP_API void fail_device(const char* op, const View& view, Device stream_device);
// Also for a kernel that has only some of its operations, before it enqueues.
[[noreturn]] LOCKSTEP_API void fail_missing(const char* op, DType dtype, Device device);
inline void check_view(const char* op, const View& view, Device device) {
  if (view.present && view.device != device) [[unlikely]]
    fail_device(op, view, device);
}

// For the order checker.
LOCKSTEP_API void add_use(std::vector<MemoryUse>& uses, const View& view, bool reads, bool writes);
inline void add_use(std::vector<MemoryUse>& uses, const In& in) { add_use(uses, in.view, true, false); }
inline void add_use(std::vector<MemoryUse>& uses, const Out& out) { add_use(uses, out.view, false, true); }
inline void add_use(std::vector<MemoryUse>& uses, const InOut& out) { add_use(uses, out.view, true, true); }
template <class Args>
[[gnu::noinline, gnu::cold]] void declare_views(const Stream& stream, const Args& args, Place place) {
  std::vector<MemoryUse> uses;
  args.views([&](const auto& use) { add_use(uses, use); });
  declare(stream, Args::kName, uses, place);
}

// What a trace and an error call it: the operation, where a kernel does several.
template <class Args>
const char* operation_name(const Args& args) {
  if constexpr (requires { op_name(args.op); })
    return op_name(args.op);
  else if constexpr (requires { op_name(args.kind); })
    return op_name(args.kind);
  else
    return Args::kName;
}
template <class Args>
[[gnu::noinline, gnu::cold]] void run_traced(const Stream& stream, Kernel<Args> kernel, const Args& args) {
  const trace::WorkScope scope(stream, {.name = operation_name(args), .kind = trace::Kind::kernel});
  kernel(stream, args);
}
template <class Args>
[[noreturn, gnu::noinline, gnu::cold]] void fail_absent(const Args& args, DType dtype, Device device) {
  fail_missing(operation_name(args), dtype, device);
}
}  // namespace detail

// Enqueues the kernel on `stream`. Throws InvalidArgument when a view is on another device than the stream, and
// NotSupported, naming op, dtype and device, when the device has no such kernel. A checked stream also throws what
// declare() does.
template <class Args>
void launch(const Stream& stream, const Args& args, Place place = {__builtin_FILE(), __builtin_LINE()}) {
  DType dtype = DType::f32;
  bool first = true;
  args.views([&](const auto& use) {
    detail::check_view(Args::kName, use.view, stream.device());
    if (first && use.view.present) dtype = use.view.dtype, first = false;
  });
  const Kernel<Args> kernel = table(stream.device().type()).template entry<Args>();
  if (kernel == nullptr) [[unlikely]]
    detail::fail_absent(args, dtype, stream.device());
  if (stream.checked()) [[unlikely]]
    detail::declare_views(stream, args, place);
  if (trace::active()) [[unlikely]]
    return detail::run_traced(stream, kernel, args);
  kernel(stream, args);
}

}  // namespace lockstep::kernels
