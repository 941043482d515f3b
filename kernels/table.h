// The op seam: what a device can compute. A kernel is named by the type of its arguments; each backend has one list of
// its kernels (host/kernels.h, cuda/kernels.h), of which its table is made.
#pragma once

#include <tuple>
#include <type_traits>

#include "lockstep/kernels/args.h"
#include "lockstep/kernels/layer_args.h"
#include "lockstep/kernels/optimizer_args.h"
#include "lockstep/kernels/quantized_args.h"
#include "lockstep/kernels/sequence_args.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

// A list of types of arguments.
template <class... Args>
struct ArgsList {
  template <class X>
  static constexpr bool contains = (std::is_same_v<X, Args> || ...);
};

// Every kernel that there is, by the type of its arguments.
using AllArgs =
    ArgsList<UnaryArgs, BinaryArgs, WhereArgs, CastArgs, FillArgs, ArangeArgs, ReduceArgs, ArgReduceArgs, MatmulArgs,
             Conv2dArgs, Conv2dGradInputArgs, Conv2dGradWeightArgs, MaxPool2dArgs, MaxUnpool2dArgs, AvgPool2dArgs,
             AvgPool2dGradArgs, BatchNormArgs, BatchNormGradArgs, SoftmaxArgs, SoftmaxGradArgs, GroupNormArgs,
             GroupNormGradArgs, RmsNormArgs, RmsNormGradArgs, Resample2dArgs, CrossEntropyArgs, CrossEntropyGradArgs,
             CumsumArgs, ArgsortArgs, AttentionArgs, AttentionGradArgs, LstmCellArgs, LstmCellGradArgs, GruCellArgs,
             GruCellGradArgs, GatherArgs, ScatterAddArgs, IndexSelectArgs, IndexAddArgs, RandomArgs, SgdArgs, AdamArgs,
             UnscaleArgs, CopyManyArgs, OrderedSumArgs, QuantizedMatmulArgs, DequantizeArgs>;

template <class Args>
using Kernel = void (*)(const Stream& stream, const Args& args);

// What a kind of device can compute. A null entry: not on this device.
class KernelTable {
 public:
  template <class Args>
  constexpr Kernel<Args>& entry() {
    return std::get<Kernel<Args>>(entries_);
  }
  template <class Args>
  constexpr const Kernel<Args>& entry() const {
    return std::get<Kernel<Args>>(entries_);
  }

  // Creates what kernels on the device will ever need (handles, workspaces), so that nothing is created later, while a
  // collective may be in flight. Null: nothing to create.
  void (*prepare)(Device device) = nullptr;

  // Whether the kernels of convolutions, pooling and resampling take images in channels_last too (args.h). Where not,
  // the tensor layer gives them contiguous ones.
  bool takes_channels_last = false;
  // The same of group normalisation, in f32 (layer_args.h).
  bool normalizes_channels_last = false;

 private:
  template <class... Args>
  static std::tuple<Kernel<Args>...> entries_of(ArgsList<Args...>);
  decltype(entries_of(AllArgs())) entries_{};
};

// The table of a backend's list: a class with `static void enqueue(const Stream&, const XArgs&)` for each kernel it
// has, and `Absent`, the ArgsList of those it lacks.
template <class Kernels>
constexpr KernelTable table_of() {
  KernelTable table;
  const auto fill = [&]<class Args>(ArgsList<Args>) {
    constexpr bool kAbsent = Kernels::Absent::template contains<Args>;
    constexpr bool kThere = requires(Stream & stream, const Args& args) { Kernels::enqueue(stream, args); };
    static_assert(kThere || kAbsent, "a backend has a kernel for these arguments, or lists them as absent");
    static_assert(!kThere || !kAbsent, "a backend lists these arguments as absent, and has a kernel for them");
    if constexpr (kThere) table.entry<Args>() = static_cast<Kernel<Args>>(&Kernels::enqueue);
  };
  [&]<class... Args>(ArgsList<Args...>) { (fill(ArgsList<Args>()), ...); }(AllArgs());
  return table;
}

}  // namespace lockstep

// The backends' tables, each defined in the folder of its backend. cuda's throws NotSupported in a build without CUDA.
namespace lockstep::kernels::host {
const KernelTable& kernel_table();
}
namespace lockstep::kernels::cuda {
const KernelTable& kernel_table();
}
// Of host devices that record (runtime/record/record.h).
namespace lockstep::kernels::record {
const KernelTable& kernel_table();
}
