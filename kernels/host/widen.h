// The floating-point families (convolution, norms, pooling, …) are compiled for float and double; f16 and bf16 tensors
// are converted to float in scratch memory on the way in and back on the way out. No view here has gaps; the order of
// the elements stays.
#pragma once

#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {

// Calls `f(Type<C>{})` with the type in which a floating dtype computes.
template <class F>
decltype(auto) dispatch_compute(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(Type<double>{});
  return f(Type<float>{});
}

// `count` elements as float.
void widen(const View& view, std::int64_t count, float* to);
void narrow(const float* from, std::int64_t count, const View& view);

// The elements of an input; null when it is absent.
template <class C>
const C* read(Scratch& scratch, const View& view) {
  if (!view.present) return nullptr;
  if constexpr (std::is_same_v<C, float>) {
    if (view.dtype != DType::f32) {
      const std::int64_t count = element_count(view.shape);
      float* wide = scratch.take<float>(count);
      widen(view, count, wide);
      return wide;
    }
  }
  return static_cast<const C*>(view.data);
}
template <class C>
const C* read(Scratch& scratch, const In& in) {
  return read<C>(scratch, in.view);
}

// The elements of an output, null when it is absent. `finish` stores them.
template <class C>
class Writer {
 public:
  Writer(Scratch& scratch, const Out& out) : view_(out.view) {
    if (!view_.present) return;
    data_ = is_wide() ? static_cast<C*>(view_.data) : scratch.take<C>(element_count(view_.shape));
  }
  Writer(Scratch& scratch, const InOut& out) : view_(out.view) {
    // `read` gives the memory itself or a copy of our own: both may be written.
    data_ = const_cast<C*>(read<C>(scratch, view_));
  }
  C* data() const { return data_; }
  void finish() const {
    if constexpr (std::is_same_v<C, float>)
      if (data_ && !is_wide()) narrow(data_, element_count(view_.shape), view_);
  }

 private:
  bool is_wide() const { return view_.dtype == dtype_of<C>(); }
  const View& view_;
  C* data_ = nullptr;
};

}  // namespace lockstep::kernels::host
