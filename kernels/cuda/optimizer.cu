#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

// Many tensors in one launch: block b works on one chunk of one tensor. The table travels as the kernel's argument,
// which may have 4 KiB; what does not fit takes another launch.
constexpr int kMostTensors = 56, kMostBlocks = 320, kChunk = 16384;

struct Table {
  void* parameter[kMostTensors];
  const void* gradient[kMostTensors];
  void* momentum[kMostTensors];  // null without
  std::int64_t count[kMostTensors];
  std::int32_t chunk[kMostBlocks];
  std::uint8_t tensor[kMostBlocks];
  bool first_step[kMostTensors], packed[kMostTensors];
};

template <class C>
struct Settings {
  C rate, decay, sign, keep, take;
  bool decays, nesterov;
  const double* replayed;  // the rate, in device memory; null: as it is here
};
static_assert(sizeof(Table) + sizeof(Settings<double>) <= 4096);

// Kinds of steps are branches where a multiplication by zero would not do: infinity times zero is NaN, and an
// uninitialised buffer must not be read at all.
template <class T>
__device__ void step(const Settings<Compute<T>>& s, T& parameter, T gradient, T& momentum, bool moves, bool first) {
  using C = Compute<T>;
  const C p = widen(parameter);
  C g = s.sign * widen(gradient);
  if (s.decays) g += s.decay * p;
  if (!moves) {
    parameter = narrow<T>(p - s.rate * g);
    return;
  }
  C buffer = g;
  if (!first) buffer = s.keep * widen(momentum) + s.take * g;
  momentum = narrow<T>(buffer);
  parameter = narrow<T>(p - s.rate * (s.nesterov ? g + s.keep * buffer : buffer));
}

template <class T>
__global__ void __launch_bounds__(kThreads) sgd_kernel(const Table table, const Settings<Compute<T>> given) {
  using P = Pack<T, kPack<T>>;
  Settings<Compute<T>> settings = given;
  if (settings.replayed) settings.rate = static_cast<Compute<T>>(*settings.replayed);
  const int t = table.tensor[blockIdx.x];
  const std::int64_t begin = static_cast<std::int64_t>(table.chunk[blockIdx.x]) * kChunk;
  const std::int64_t rest = table.count[t] - begin;
  const int count = static_cast<int>(rest < kChunk ? rest : kChunk);
  T* parameter = static_cast<T*>(table.parameter[t]) + begin;
  const T* gradient = static_cast<const T*>(table.gradient[t]) + begin;
  T* momentum = table.momentum[t] ? static_cast<T*>(table.momentum[t]) + begin : nullptr;
  const bool first = table.first_step[t];
  int done = 0;
  if (table.packed[t]) {
    const int packs = count / kPack<T>;
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
      P p = reinterpret_cast<P*>(parameter)[i], m{};
      const P g = reinterpret_cast<const P*>(gradient)[i];
      if (momentum && !first) m = reinterpret_cast<P*>(momentum)[i];
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k)
        step(settings, p.element[k], g.element[k], m.element[k], momentum != nullptr, first);
      reinterpret_cast<P*>(parameter)[i] = p;
      if (momentum) reinterpret_cast<P*>(momentum)[i] = m;
    }
    done = packs * kPack<T>;
  }
  for (int i = done + static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    T m{};
    if (momentum && !first) m = momentum[i];
    step(settings, parameter[i], gradient[i], m, momentum != nullptr, first);
    if (momentum) momentum[i] = m;
  }
}

template <class T>
void run(const Stream& stream, const SgdArgs& args) {
  using C = Compute<T>;
  const Settings<C> settings{static_cast<C>(args.learning_rate),
                             static_cast<C>(args.weight_decay),
                             args.maximize ? C(-1) : C(1),
                             static_cast<C>(args.momentum),
                             static_cast<C>(1 - args.dampening),
                             args.weight_decay != 0,
                             args.nesterov,
                             args.replayed};
  Table table{};
  int tensors = 0, blocks = 0;
  const auto flush = [&] {
    if (blocks > 0)
      launch(stream, SgdArgs::kName, sgd_kernel<T>, Grid{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0}, table,
             settings);
    tensors = blocks = 0;
  };
  for (const SgdTensor& t : args.tensors) {
    const View& parameter = t.parameter.view;
    const std::int64_t count = element_count(parameter.shape);
    if (parameter.dtype != dtype_of<T>() || count == 0) continue;
    LOCKSTEP_CHECK(count / kChunk < INT32_MAX, "[sgd] expected fewer than 2^45 elements, got shape ", parameter.shape);
    const auto chunks = static_cast<std::int32_t>((count + kChunk - 1) / kChunk);
    int slot = -1;
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
      if (blocks == kMostBlocks) flush(), slot = -1;
      if (slot < 0) {
        if (tensors == kMostTensors) flush();
        slot = tensors++;
        const bool moves = t.momentum.view.present;
        table.parameter[slot] = parameter.data;
        table.gradient[slot] = t.gradient.view.data;
        table.momentum[slot] = moves ? t.momentum.view.data : nullptr;
        table.count[slot] = count;
        table.first_step[slot] = t.first_step;
        table.packed[slot] = aligned_for(parameter.data, parameter.dtype, kPack<T>) &&
                             aligned_for(t.gradient.view.data, parameter.dtype, kPack<T>) &&
                             (!moves || aligned_for(t.momentum.view.data, parameter.dtype, kPack<T>));
      }
      table.tensor[blocks] = static_cast<std::uint8_t>(slot);
      table.chunk[blocks++] = chunk;
    }
  }
  flush();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const SgdArgs& args) {
  for (const SgdTensor& t : args.tensors) check_floating(SgdArgs::kName, t.parameter.view.dtype, stream);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const SgdTensor& t : args.tensors) {
      if (t.parameter.view.dtype != dtype) continue;
      dispatch_floating(dtype, [&]<class T>(Type<T>) { run<T>(stream, args); });
      break;
    }
}

void list_optimizer(KernelList& list) {
  for_floating([&]<class T>(Type<T>) { list.add(sgd_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
