// The cells of recurrent networks: a thread for a pack of state elements, after the matrix products.
#include "lockstep/kernels/cell_functors.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

using functors::GruGates;
using functors::LstmGates;

// Where a thread reads and writes: packs of kCount neighbouring elements of a row of [N, size].
template <class T, int kCount>
__device__ Pack<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <class T, int kCount>
__device__ void store(const Pack<T, kCount>& pack, T* to) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// The gates of kCount elements; those of one element are a row apart.
template <class T, int kCount, int kGates>
struct GatePacks {
  Pack<T, kCount> gate[kGates];

  GatePacks() = default;
  __device__ GatePacks(const T* from, std::int64_t size) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) gate[g] = load<T, kCount>(from + g * size);
  }
  __device__ void store_to(T* to, std::int64_t size) const {
#pragma unroll
    for (int g = 0; g < kGates; ++g) store(gate[g], to + g * size);
  }
  // LstmGates or GruGates of element k.
  template <class Gates>
  __device__ Gates get(int k) const {
    if constexpr (kGates == 4)
      return {widen(gate[0].element[k]), widen(gate[1].element[k]), widen(gate[2].element[k]),
              widen(gate[3].element[k])};
    else
      return {widen(gate[0].element[k]), widen(gate[1].element[k]), widen(gate[2].element[k])};
  }
  __device__ void set(int k, const LstmGates<Compute<T>>& x) {
    gate[0].element[k] = narrow<T>(x.i), gate[1].element[k] = narrow<T>(x.f);
    gate[2].element[k] = narrow<T>(x.g), gate[3].element[k] = narrow<T>(x.o);
  }
  __device__ void set(int k, const GruGates<Compute<T>>& x) {
    gate[0].element[k] = narrow<T>(x.r), gate[1].element[k] = narrow<T>(x.z), gate[2].element[k] = narrow<T>(x.n);
  }
};

// Calls f(first state element, where the first of its gates is) for every pack of [N, size].
template <int kCount, class F>
__device__ void for_each_state(std::int64_t packs, const Splitter& by_row, std::int64_t size, int gates, F&& f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < packs; at += step) {
    std::int64_t column;
    const std::int64_t row = by_row.split(at, &column);
    f(at * kCount, row * gates * size + column * kCount);
  }
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    lstm_cell_kernel(const T* gates, const T* c_before, T* activated, T* h, T* c, std::int64_t packs, std::int64_t size,
                     const Splitter by_row) {
  using C = Compute<T>;
  for_each_state<kCount>(packs, by_row, size, 4, [&](std::int64_t at, std::int64_t gates_at) {
    GatePacks<T, kCount, 4> x(gates + gates_at, size);
    const Pack<T, kCount> before = load<T, kCount>(c_before + at);
    Pack<T, kCount> new_h, new_c;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto active = functors::lstm_activate(x.template get<LstmGates<C>>(k));
      C h_of, c_of;
      functors::lstm_cell(active, widen(before.element[k]), &h_of, &c_of);
      new_h.element[k] = narrow<T>(h_of), new_c.element[k] = narrow<T>(c_of);
      x.set(k, active);
    }
    store(new_h, h + at);
    store(new_c, c + at);
    if (activated) x.store_to(activated + gates_at, size);
  });
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    lstm_cell_grad_kernel(const T* dh, const T* dc, const T* activated, const T* c_before, const T* c, T* dgates,
                          T* dc_before, std::int64_t packs, std::int64_t size, const Splitter by_row) {
  using C = Compute<T>;
  for_each_state<kCount>(packs, by_row, size, 4, [&](std::int64_t at, std::int64_t gates_at) {
    GatePacks<T, kCount, 4> x(activated + gates_at, size);
    const Pack<T, kCount> before = load<T, kCount>(c_before + at), after = load<T, kCount>(c + at);
    Pack<T, kCount> of_h, of_c, of_before;
    if (dh) of_h = load<T, kCount>(dh + at);
    if (dc) of_c = load<T, kCount>(dc + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      C result;
      x.set(k, functors::lstm_cell_grad(dh ? widen(of_h.element[k]) : C(0), dc ? widen(of_c.element[k]) : C(0),
                                        x.template get<LstmGates<C>>(k), widen(before.element[k]),
                                        widen(after.element[k]), &result));
      of_before.element[k] = narrow<T>(result);
    }
    x.store_to(dgates + gates_at, size);
    if (dc_before) store(of_before, dc_before + at);
  });
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    gru_cell_kernel(const T* input, const T* hidden, const T* h_before, T* activated, T* h, std::int64_t packs,
                    std::int64_t size, const Splitter by_row) {
  using C = Compute<T>;
  for_each_state<kCount>(packs, by_row, size, 3, [&](std::int64_t at, std::int64_t gates_at) {
    GatePacks<T, kCount, 3> x(input + gates_at, size);
    const GatePacks<T, kCount, 3> y(hidden + gates_at, size);
    Pack<T, kCount> state = load<T, kCount>(h_before + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto active = functors::gru_activate(x.template get<GruGates<C>>(k), y.template get<GruGates<C>>(k));
      state.element[k] = narrow<T>(functors::gru_cell(active, widen(state.element[k])));
      x.set(k, active);
    }
    store(state, h + at);
    if (activated) x.store_to(activated + gates_at, size);
  });
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    gru_cell_grad_kernel(const T* dh, const T* activated, const T* hidden, const T* h_before, T* dinput, T* dhidden,
                         T* dh_before, std::int64_t packs, std::int64_t size, const Splitter by_row) {
  using C = Compute<T>;
  for_each_state<kCount>(packs, by_row, size, 3, [&](std::int64_t at, std::int64_t gates_at) {
    GatePacks<T, kCount, 3> x(activated + gates_at, size);
    const Pack<T, kCount> hidden_n = load<T, kCount>(hidden + gates_at + 2 * size),
                          before = load<T, kCount>(h_before + at);
    Pack<T, kCount> of_h = load<T, kCount>(dh + at), of_hidden_n;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      GruGates<C> of_input, of_hidden;
      C result;
      functors::gru_cell_grad(widen(of_h.element[k]), x.template get<GruGates<C>>(k), widen(hidden_n.element[k]),
                              widen(before.element[k]), &of_input, &of_hidden, &result);
      x.set(k, of_input);
      of_hidden_n.element[k] = narrow<T>(of_hidden.n);  // the two differ in n alone
      of_h.element[k] = narrow<T>(result);
    }
    x.store_to(dinput + gates_at, size);
    x.gate[2] = of_hidden_n;
    x.store_to(dhidden + gates_at, size);
    if (dh_before) store(of_h, dh_before + at);
  });
}

// `packed`: for packs of 16 bytes, where rows and pointers allow; `single`: for all else.
template <class T, class Kernel, class... Pointers>
void run(const Stream& stream, const char* op, const View& state, Kernel packed, Kernel single, Pointers... pointers) {
  const std::int64_t size = state.shape[1], count = state.shape[0] * size;
  if (count == 0) return;
  const bool packs = size % kPack<T> == 0 && (aligned_for(pointers, state.dtype, kPack<T>) && ...);
  const std::int64_t each = packs ? kPack<T> : 1;
  launch(stream, op, packs ? packed : single, grid_for(stream, count / each), pointers..., count / each, size,
         Splitter(size / each, count / each));
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const LstmCellArgs& a) {
  check_floating(LstmCellArgs::kName, a.h.view.dtype, stream);
  dispatch_floating(a.h.view.dtype, [&]<class T>(Type<T>) {
    run<T>(stream, LstmCellArgs::kName, a.h.view, lstm_cell_kernel<T, kPack<T>>, lstm_cell_kernel<T, 1>,
           data<T>(a.gates), data<T>(a.c_before), data<T>(a.activated), data<T>(a.h), data<T>(a.c));
  });
}
void Kernels::enqueue(const Stream& stream, const LstmCellGradArgs& a) {
  check_floating(LstmCellGradArgs::kName, a.c.view.dtype, stream);
  dispatch_floating(a.c.view.dtype, [&]<class T>(Type<T>) {
    run<T>(stream, LstmCellGradArgs::kName, a.c.view, lstm_cell_grad_kernel<T, kPack<T>>, lstm_cell_grad_kernel<T, 1>,
           data<T>(a.dh), data<T>(a.dc), data<T>(a.activated), data<T>(a.c_before), data<T>(a.c), data<T>(a.dgates),
           data<T>(a.dc_before));
  });
}
void Kernels::enqueue(const Stream& stream, const GruCellArgs& a) {
  check_floating(GruCellArgs::kName, a.h.view.dtype, stream);
  dispatch_floating(a.h.view.dtype, [&]<class T>(Type<T>) {
    run<T>(stream, GruCellArgs::kName, a.h.view, gru_cell_kernel<T, kPack<T>>, gru_cell_kernel<T, 1>, data<T>(a.input),
           data<T>(a.hidden), data<T>(a.h_before), data<T>(a.activated), data<T>(a.h));
  });
}
void Kernels::enqueue(const Stream& stream, const GruCellGradArgs& a) {
  check_floating(GruCellGradArgs::kName, a.dh.view.dtype, stream);
  dispatch_floating(a.dh.view.dtype, [&]<class T>(Type<T>) {
    run<T>(stream, GruCellGradArgs::kName, a.dh.view, gru_cell_grad_kernel<T, kPack<T>>, gru_cell_grad_kernel<T, 1>,
           data<T>(a.dh), data<T>(a.activated), data<T>(a.hidden), data<T>(a.h_before), data<T>(a.dinput),
           data<T>(a.dhidden), data<T>(a.dh_before));
  });
}

void list_cells(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(lstm_cell_kernel<T, kPack<T>>);
    list.add(lstm_cell_kernel<T, 1>);
    list.add(lstm_cell_grad_kernel<T, kPack<T>>);
    list.add(lstm_cell_grad_kernel<T, 1>);
    list.add(gru_cell_kernel<T, kPack<T>>);
    list.add(gru_cell_kernel<T, 1>);
    list.add(gru_cell_grad_kernel<T, kPack<T>>);
    list.add(gru_cell_grad_kernel<T, 1>);
  });
}

}  // namespace lockstep::kernels::cuda
