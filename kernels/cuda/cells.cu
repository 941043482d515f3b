// The cells of recurrent networks: a thread per state element, after the matrix products.
#include "lockstep/kernels/cell_functors.h"
#include "lockstep/kernels/cuda/kernels.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/numbers.cuh"

namespace lockstep::kernels::cuda {
namespace {

using functors::GruGates;
using functors::LstmGates;

// Calls f(state element, where the first of its gates is) for every element of [N, size].
template <class F>
__device__ void for_each_state(std::int64_t count, const Splitter& by_size, std::int64_t size, int gates, F&& f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < count; at += step) {
    std::int64_t column;
    const std::int64_t row = by_size.split(at, &column);
    f(at, row * gates * size + column);
  }
}

template <class T>
__device__ LstmGates<Compute<T>> load_lstm(const T* x, std::int64_t size) {
  return {widen(x[0]), widen(x[size]), widen(x[2 * size]), widen(x[3 * size])};
}
template <class T>
__device__ void store_lstm(const LstmGates<Compute<T>>& x, T* to, std::int64_t size) {
  to[0] = narrow<T>(x.i), to[size] = narrow<T>(x.f), to[2 * size] = narrow<T>(x.g), to[3 * size] = narrow<T>(x.o);
}
template <class T>
__device__ GruGates<Compute<T>> load_gru(const T* x, std::int64_t size) {
  return {widen(x[0]), widen(x[size]), widen(x[2 * size])};
}
template <class T>
__device__ void store_gru(const GruGates<Compute<T>>& x, T* to, std::int64_t size) {
  to[0] = narrow<T>(x.r), to[size] = narrow<T>(x.z), to[2 * size] = narrow<T>(x.n);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lstm_cell_kernel(const T* gates, const T* c_before, T* activated, T* h, T* c, std::int64_t count, std::int64_t size,
                     const Splitter by_size) {
  using C = Compute<T>;
  for_each_state(count, by_size, size, 4, [&](std::int64_t at, std::int64_t gates_at) {
    const LstmGates<C> x = functors::lstm_activate(load_lstm(gates + gates_at, size));
    C new_h, new_c;
    functors::lstm_cell(x, widen(c_before[at]), &new_h, &new_c);
    h[at] = narrow<T>(new_h);
    c[at] = narrow<T>(new_c);
    if (activated) store_lstm(x, activated + gates_at, size);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lstm_cell_grad_kernel(const T* dh, const T* dc, const T* activated, const T* c_before, const T* c, T* dgates,
                          T* dc_before, std::int64_t count, std::int64_t size, const Splitter by_size) {
  using C = Compute<T>;
  for_each_state(count, by_size, size, 4, [&](std::int64_t at, std::int64_t gates_at) {
    C before;
    store_lstm(
        functors::lstm_cell_grad(dh ? widen(dh[at]) : C(0), dc ? widen(dc[at]) : C(0),
                                 load_lstm(activated + gates_at, size), widen(c_before[at]), widen(c[at]), &before),
        dgates + gates_at, size);
    if (dc_before) dc_before[at] = narrow<T>(before);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gru_cell_kernel(const T* input, const T* hidden, const T* h_before, T* activated, T* h, std::int64_t count,
                    std::int64_t size, const Splitter by_size) {
  using C = Compute<T>;
  for_each_state(count, by_size, size, 3, [&](std::int64_t at, std::int64_t gates_at) {
    const GruGates<C> x = functors::gru_activate(load_gru(input + gates_at, size), load_gru(hidden + gates_at, size));
    h[at] = narrow<T>(functors::gru_cell(x, widen(h_before[at])));
    if (activated) store_gru(x, activated + gates_at, size);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gru_cell_grad_kernel(const T* dh, const T* activated, const T* hidden, const T* h_before, T* dinput, T* dhidden,
                         T* dh_before, std::int64_t count, std::int64_t size, const Splitter by_size) {
  using C = Compute<T>;
  for_each_state(count, by_size, size, 3, [&](std::int64_t at, std::int64_t gates_at) {
    GruGates<C> di, dg;
    C before;
    functors::gru_cell_grad(widen(dh[at]), load_gru(activated + gates_at, size), widen(hidden[gates_at + 2 * size]),
                            widen(h_before[at]), &di, &dg, &before);
    store_gru(di, dinput + gates_at, size);
    store_gru(dg, dhidden + gates_at, size);
    if (dh_before) dh_before[at] = narrow<T>(before);
  });
}

template <class... Pointers>
void run(const Stream& stream, const char* op, const View& state, auto kernel, Pointers... pointers) {
  const std::int64_t size = state.shape[1], count = state.shape[0] * size;
  if (count == 0) return;
  launch(stream, op, kernel, grid_for(stream, count), pointers..., count, size, Splitter(size, count));
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const LstmCellArgs& a) {
  check_floating(LstmCellArgs::kName, a.h.view.dtype, stream);
  dispatch_floating(a.h.view.dtype, [&]<class T>(Type<T>) {
    run(stream, LstmCellArgs::kName, a.h.view, lstm_cell_kernel<T>, data<T>(a.gates), data<T>(a.c_before),
        data<T>(a.activated), data<T>(a.h), data<T>(a.c));
  });
}
void Kernels::enqueue(const Stream& stream, const LstmCellGradArgs& a) {
  check_floating(LstmCellGradArgs::kName, a.c.view.dtype, stream);
  dispatch_floating(a.c.view.dtype, [&]<class T>(Type<T>) {
    run(stream, LstmCellGradArgs::kName, a.c.view, lstm_cell_grad_kernel<T>, data<T>(a.dh), data<T>(a.dc),
        data<T>(a.activated), data<T>(a.c_before), data<T>(a.c), data<T>(a.dgates), data<T>(a.dc_before));
  });
}
void Kernels::enqueue(const Stream& stream, const GruCellArgs& a) {
  check_floating(GruCellArgs::kName, a.h.view.dtype, stream);
  dispatch_floating(a.h.view.dtype, [&]<class T>(Type<T>) {
    run(stream, GruCellArgs::kName, a.h.view, gru_cell_kernel<T>, data<T>(a.input), data<T>(a.hidden),
        data<T>(a.h_before), data<T>(a.activated), data<T>(a.h));
  });
}
void Kernels::enqueue(const Stream& stream, const GruCellGradArgs& a) {
  check_floating(GruCellGradArgs::kName, a.dh.view.dtype, stream);
  dispatch_floating(a.dh.view.dtype, [&]<class T>(Type<T>) {
    run(stream, GruCellGradArgs::kName, a.dh.view, gru_cell_grad_kernel<T>, data<T>(a.dh), data<T>(a.activated),
        data<T>(a.hidden), data<T>(a.h_before), data<T>(a.dinput), data<T>(a.dhidden), data<T>(a.dh_before));
  });
}

void list_cells(KernelList& list) {
  for_floating([&]<class T>(Type<T>) {
    list.add(lstm_cell_kernel<T>);
    list.add(lstm_cell_grad_kernel<T>);
    list.add(gru_cell_kernel<T>);
    list.add(gru_cell_grad_kernel<T>);
  });
}

}  // namespace lockstep::kernels::cuda
