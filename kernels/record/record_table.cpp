// The kernels of devices that record (runtime/record/record.h): they write down what they would have done.
#include <string>
#include <type_traits>

#include "lockstep/kernels/record/flops.h"
#include "lockstep/runtime/record/recorded_device.h"

namespace lockstep::kernels::record {
namespace {

// What of a view moves between memory and the kernel: what repeats (a stride of 0) counts once.
std::uint64_t bytes_of(const View& view) {
  std::uint64_t bytes = size_of(view.dtype);
  for (int d = 0; d < view.rank(); ++d)
    if (view.strides[d] != 0 || view.shape[d] == 0) bytes *= static_cast<std::uint64_t>(view.shape[d]);
  return bytes;
}

void add_shape(std::string& text, const View& view) {
  if (!text.empty()) text += ',';
  if (view.rank() == 0) text += '1';
  for (int d = 0; d < view.rank(); ++d) text += lockstep::cat(d > 0 ? "x" : "", view.shape[d]);
}

// The shapes of so many views are enough for any kernel but those of optimizers, whose lists are long.
constexpr int kMostShapes = 8;

struct Kernels {
  using Absent = ArgsList<>;

  template <class Args>
  static void enqueue(const Stream& stream, const Args& args) {
    lockstep::detail::KernelRecord record{.name = kernels::detail::operation_name(args), .dtype = {}};
    int shapes = 0;
    args.views([&](const auto& use) {
      if (!use.view.present) return;
      using Use = std::remove_cvref_t<decltype(use)>;
      const std::uint64_t bytes = bytes_of(use.view);
      if constexpr (!std::is_same_v<Use, Out>) record.bytes_read += bytes;
      if constexpr (!std::is_same_v<Use, In>) record.bytes_written += bytes;
      if (record.dtype.empty()) record.dtype = to_string(use.view.dtype);
      if (shapes++ < kMostShapes) add_shape(record.shapes, use.view);
    });
    if constexpr (std::is_same_v<Args, MatmulArgs>)
      if (args.beta == 0) record.bytes_read -= bytes_of(args.out.view);  // written, not added to
    if (record.dtype.empty()) record.dtype = "f32";
    record.flops = flops_of(args);
    const lockstep::detail::RecordedDevice on(stream.device().index());
    lockstep::detail::Recorder::active()->kernel(lockstep::detail::number_of(stream.handle()), record);
  }
};

}  // namespace

const KernelTable& kernel_table() {
  static constexpr KernelTable kTable = [] {
    KernelTable table = table_of<Kernels>();
    table.takes_channels_last = true;  // what the elements are does not matter here
    return table;
  }();
  return kTable;
}

}  // namespace lockstep::kernels::record
