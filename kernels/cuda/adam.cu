// Adam, the unscaling of gradients, and copies: many tensors in one launch, as in optimizer.cu.
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"
#include "lockstep/kernels/optimizer_functors.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kMostBlocks = 320, kChunk = 16384;

// Block b works on one chunk of one tensor. Part of the kernel's argument, which may have 4 KiB; what does not fit
// takes another launch.
template <int kTensors>
struct Chunks {
  static constexpr int kMostTensors = kTensors;
  std::int64_t count[kTensors];
  std::int32_t chunk[kMostBlocks];
  std::uint8_t tensor[kMostBlocks];
  bool packed[kTensors];
};

// The part of a tensor that a block works on.
struct Part {
  int tensor;
  std::int64_t begin;
  int count;
};
template <int kTensors>
__device__ Part part_of(const Chunks<kTensors>& chunks) {
  const int t = chunks.tensor[blockIdx.x];
  const std::int64_t begin = static_cast<std::int64_t>(chunks.chunk[blockIdx.x]) * kChunk;
  const std::int64_t rest = chunks.count[t] - begin;
  return {t, begin, static_cast<int>(rest < kChunk ? rest : kChunk)};
}

// Fills the tables of as many launches as it takes.
template <class Table>
class Filler {
 public:
  explicit Filler(const char* op) : op_(op) {}
  Table table{};

  // put(slot) enters a tensor of that shape into the table, launch(blocks) launches what is in it.
  template <class Put, class Launch>
  void add(const Shape& shape, bool packed, Put put, Launch launch) {
    const std::int64_t count = element_count(shape);
    LOCKSTEP_CHECK(count / kChunk < INT32_MAX, "[", op_, "] expected fewer than 2^45 elements, got shape ", shape);
    const auto chunks = static_cast<std::int32_t>((count + kChunk - 1) / kChunk);
    int slot = -1;
    for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
      if (blocks_ == kMostBlocks) flush(launch), slot = -1;
      if (slot < 0) {
        if (tensors_ == decltype(table.chunks)::kMostTensors) flush(launch);
        slot = tensors_++;
        table.chunks.count[slot] = count;
        table.chunks.packed[slot] = packed;
        put(slot);
      }
      table.chunks.tensor[blocks_] = static_cast<std::uint8_t>(slot);
      table.chunks.chunk[blocks_++] = chunk;
    }
  }
  template <class Launch>
  void flush(Launch launch) {
    if (blocks_ > 0) launch(Grid{dim3(static_cast<unsigned>(blocks_)), dim3(kThreads), 0});
    tensors_ = blocks_ = 0;
  }

 private:
  const char* op_;
  int tensors_ = 0, blocks_ = 0;
};

// ---- adam

template <class C>
struct AdamTable {
  static constexpr int kTensors = 32;
  Chunks<kTensors> chunks;
  void* parameter[kTensors];
  const void* gradient[kTensors];
  void* exp_avg[kTensors];
  void* exp_avg_sq[kTensors];
  void* largest[kTensors];  // null without amsgrad
  C step_size[kTensors], root_correction[kTensors];
  const double* replayed[kTensors];  // these two and keep, in device memory; null: as they are here
  bool first_step[kTensors];
};
static_assert(sizeof(AdamTable<double>) + sizeof(functors::AdamConstants<double>) <= 4096);

template <class T>
struct AdamElement {
  T parameter, gradient, exp_avg, exp_avg_sq, largest;
};

// What the first step does not read must not count, so the state begins at zero.
template <class T>
__device__ void step(const functors::AdamConstants<Compute<T>>& constants, AdamElement<T>& e, bool first,
                     bool amsgrad) {
  using C = Compute<T>;
  functors::AdamState<C> state{widen(e.parameter), C(0), C(0), C(0)};
  if (!first) {
    state.exp_avg = widen(e.exp_avg);
    state.exp_avg_sq = widen(e.exp_avg_sq);
    if (amsgrad) state.max_exp_avg_sq = widen(e.largest);
  }
  if (amsgrad)
    functors::adam_step<C, true>(constants, widen(e.gradient), state);
  else
    functors::adam_step<C, false>(constants, widen(e.gradient), state);
  e.parameter = narrow<T>(state.parameter);
  e.exp_avg = narrow<T>(state.exp_avg);
  e.exp_avg_sq = narrow<T>(state.exp_avg_sq);
  e.largest = narrow<T>(state.max_exp_avg_sq);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(const AdamTable<Compute<T>> table, const functors::AdamConstants<Compute<T>> shared) {
  using P = Pack<T, kPack<T>>;
  const Part part = part_of(table.chunks);
  const int t = part.tensor;
  functors::AdamConstants<Compute<T>> constants = shared;
  constants.step_size = table.step_size[t];
  constants.root_correction = table.root_correction[t];
  if (const double* const now = table.replayed[t]) {
    constants.step_size = static_cast<Compute<T>>(now[0]);
    constants.root_correction = static_cast<Compute<T>>(now[1]);
    constants.keep = static_cast<Compute<T>>(now[2]);
  }
  T* parameter = static_cast<T*>(table.parameter[t]) + part.begin;
  const T* gradient = static_cast<const T*>(table.gradient[t]) + part.begin;
  T* exp_avg = static_cast<T*>(table.exp_avg[t]) + part.begin;
  T* exp_avg_sq = static_cast<T*>(table.exp_avg_sq[t]) + part.begin;
  const bool amsgrad = table.largest[t] != nullptr, first = table.first_step[t];
  T* largest = amsgrad ? static_cast<T*>(table.largest[t]) + part.begin : nullptr;
  int done = 0;
  if (table.chunks.packed[t]) {
    const int packs = part.count / kPack<T>;
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
      P p = reinterpret_cast<P*>(parameter)[i], m{}, v{}, x{};
      const P g = reinterpret_cast<const P*>(gradient)[i];
      if (!first) {
        m = reinterpret_cast<P*>(exp_avg)[i];
        v = reinterpret_cast<P*>(exp_avg_sq)[i];
        if (amsgrad) x = reinterpret_cast<P*>(largest)[i];
      }
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) {
        AdamElement<T> e{p.element[k], g.element[k], m.element[k], v.element[k], x.element[k]};
        step(constants, e, first, amsgrad);
        p.element[k] = e.parameter, m.element[k] = e.exp_avg, v.element[k] = e.exp_avg_sq, x.element[k] = e.largest;
      }
      reinterpret_cast<P*>(parameter)[i] = p;
      reinterpret_cast<P*>(exp_avg)[i] = m;
      reinterpret_cast<P*>(exp_avg_sq)[i] = v;
      if (amsgrad) reinterpret_cast<P*>(largest)[i] = x;
    }
    done = packs * kPack<T>;
  }
  for (int i = done + static_cast<int>(threadIdx.x); i < part.count; i += kThreads) {
    AdamElement<T> e{parameter[i], gradient[i], T{}, T{}, T{}};
    if (!first) {
      e.exp_avg = exp_avg[i];
      e.exp_avg_sq = exp_avg_sq[i];
      if (amsgrad) e.largest = largest[i];
    }
    step(constants, e, first, amsgrad);
    parameter[i] = e.parameter, exp_avg[i] = e.exp_avg, exp_avg_sq[i] = e.exp_avg_sq;
    if (amsgrad) largest[i] = e.largest;
  }
}

template <class T>
void run_adam(const Stream& stream, const AdamArgs& args) {
  using C = Compute<T>;
  const auto shared = functors::adam_constants<C>(args, 1);
  Filler<AdamTable<C>> filler(AdamArgs::kName);
  const auto start = [&](const Grid& grid) {
    launch(stream, AdamArgs::kName, adam_kernel<T>, grid, filler.table, shared);
  };
  for (const AdamTensor& t : args.tensors) {
    const View& parameter = t.parameter.view;
    if (parameter.dtype != dtype_of<T>()) continue;
    const View& largest = t.max_exp_avg_sq.view;
    bool packed = true;
    for (const View* view : {&parameter, &t.gradient.view, &t.exp_avg.view, &t.exp_avg_sq.view, &largest})
      packed &= !view->present || aligned_for(view->data, parameter.dtype, kPack<T>);
    const auto put = [&](int slot) {
      AdamTable<C>& table = filler.table;
      const auto constants = functors::adam_constants<C>(args, t.step);
      table.parameter[slot] = parameter.data;
      table.gradient[slot] = t.gradient.view.data;
      table.exp_avg[slot] = t.exp_avg.view.data;
      table.exp_avg_sq[slot] = t.exp_avg_sq.view.data;
      table.largest[slot] = largest.present ? largest.data : nullptr;
      table.step_size[slot] = constants.step_size;
      table.root_correction[slot] = constants.root_correction;
      table.replayed[slot] = t.replayed;
      table.first_step[slot] = t.step == 1;
    };
    filler.add(parameter.shape, packed, put, start);
  }
  filler.flush(start);
}

// ---- unscale

struct UnscaleTable {
  static constexpr int kTensors = 128;
  Chunks<kTensors> chunks;
  void* gradient[kTensors];
};
static_assert(sizeof(UnscaleTable) + 16 <= 4096);

// True when the product is finite.
template <class T>
__device__ bool unscale(T& element, Compute<T> factor) {
  element = narrow<T>(widen(element) * factor);
  return functors::exponent_bits(element) != functors::kExponentMask<T>;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    unscale_kernel(const UnscaleTable table, const Compute<T> factor, float* found_inf) {
  using P = Pack<T, kPack<T>>;
  const Part part = part_of(table.chunks);
  T* gradient = static_cast<T*>(table.gradient[part.tensor]) + part.begin;
  bool finite = true;
  int done = 0;
  if (table.chunks.packed[part.tensor]) {
    const int packs = part.count / kPack<T>;
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
      P pack = reinterpret_cast<P*>(gradient)[i];
#pragma unroll
      for (int k = 0; k < kPack<T>; ++k) finite &= unscale(pack.element[k], factor);
      reinterpret_cast<P*>(gradient)[i] = pack;
    }
    done = packs * kPack<T>;
  }
  for (int i = done + static_cast<int>(threadIdx.x); i < part.count; i += kThreads)
    finite &= unscale(gradient[i], factor);
  // Whoever writes writes the same.
  if (!finite) *found_inf = 1;
}

template <class T>
void run_unscale(const Stream& stream, const UnscaleArgs& args) {
  Filler<UnscaleTable> filler(UnscaleArgs::kName);
  const auto start = [&](const Grid& grid) {
    launch(stream, UnscaleArgs::kName, unscale_kernel<T>, grid, filler.table, static_cast<Compute<T>>(args.factor),
           static_cast<float*>(args.found_inf.view.data));
  };
  for (const InOut& gradient : args.gradients) {
    const View& view = gradient.view;
    if (view.dtype != dtype_of<T>()) continue;
    filler.add(
        view.shape, aligned_for(view.data, view.dtype, kPack<T>),
        [&](int slot) { filler.table.gradient[slot] = view.data; }, start);
  }
  filler.flush(start);
}

// ---- copies

struct CopyTable {
  static constexpr int kTensors = 96;
  Chunks<kTensors> chunks;
  const void* from[kTensors];
  void* to[kTensors];
};
static_assert(sizeof(CopyTable) <= 4096);

template <class T>
__global__ void __launch_bounds__(kThreads) copy_many_kernel(const CopyTable table) {
  using P = Pack<T, kPack<T>>;
  const Part part = part_of(table.chunks);
  const T* from = static_cast<const T*>(table.from[part.tensor]) + part.begin;
  T* to = static_cast<T*>(table.to[part.tensor]) + part.begin;
  int done = 0;
  if (table.chunks.packed[part.tensor]) {
    const int packs = part.count / kPack<T>;
    constexpr int kAhead = 4;  // loads that are under way before the first store
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kAhead * kThreads) {
      Words<P> ahead[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (i + k * kThreads < packs) ahead[k] = reinterpret_cast<const Words<P>*>(from)[i + k * kThreads];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (i + k * kThreads < packs) reinterpret_cast<Words<P>*>(to)[i + k * kThreads] = ahead[k];
    }
    done = packs * kPack<T>;
  }
  for (int i = done + static_cast<int>(threadIdx.x); i < part.count; i += kThreads) to[i] = from[i];
}

template <class T>
void run_copies(const Stream& stream, const CopyManyArgs& args) {
  Filler<CopyTable> filler(CopyManyArgs::kName);
  const auto start = [&](const Grid& grid) {
    launch(stream, CopyManyArgs::kName, copy_many_kernel<T>, grid, filler.table);
  };
  for (const CopyPair& t : args.tensors) {
    const View &from = t.from.view, &to = t.to.view;
    if (from.dtype != dtype_of<T>()) continue;
    const bool packed = aligned_for(from.data, from.dtype, kPack<T>) && aligned_for(to.data, to.dtype, kPack<T>);
    const auto put = [&](int slot) {
      filler.table.from[slot] = from.data;
      filler.table.to[slot] = to.data;
    };
    filler.add(from.shape, packed, put, start);
  }
  filler.flush(start);
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const AdamArgs& args) {
  for (const AdamTensor& t : args.tensors) check_floating(AdamArgs::kName, t.parameter.view.dtype, stream);
  for_floating([&]<class T>(Type<T>) { run_adam<T>(stream, args); });
}

void Kernels::enqueue(const Stream& stream, const UnscaleArgs& args) {
  for (const InOut& gradient : args.gradients) check_floating(UnscaleArgs::kName, gradient.view.dtype, stream);
  for_floating([&]<class T>(Type<T>) { run_unscale<T>(stream, args); });
}

void Kernels::enqueue(const Stream& stream, const CopyManyArgs& args) {
  for (const CopyPair& t : args.tensors) check_floating(CopyManyArgs::kName, t.from.view.dtype, stream);
  for_floating([&]<class T>(Type<T>) { run_copies<T>(stream, args); });
}

void list_adam(KernelList& list) {
  for_floating(
      [&]<class T>(Type<T>) { list.add(adam_kernel<T>), list.add(unscale_kernel<T>), list.add(copy_many_kernel<T>); });
}

}  // namespace lockstep::kernels::cuda
