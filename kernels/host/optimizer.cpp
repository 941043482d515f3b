#include <algorithm>
#include <atomic>
#include <cstring>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/optimizer_functors.h"

namespace lockstep::kernels::host {
namespace {

// Calls f(tensor, begin, end) for the elements of all tensors of a list, in pieces that have several tensors, or a part
// of one. `view_of(tensor)` has as many elements; `buffers`: tensors that are read or written for each.
template <class Tensors, class ViewOf, class F>
void for_elements(const Tensors& tensors, std::int64_t buffers, ViewOf&& view_of, F&& f) {
  constexpr std::int64_t kTogether = 64;  // elements of a tensor, which no two pieces share
  std::int64_t elements = 0, bytes = 0;
  for (const auto& t : tensors) {
    const View& view = view_of(t);
    const std::int64_t count = element_count(view.shape);
    elements += count;
    bytes += buffers * count * static_cast<std::int64_t>(size_of(view.dtype));
  }
  const std::int64_t element_bytes = elements > 0 ? bytes / elements : 1;
  for_pieces(elements, piece_rows(elements, element_bytes, kPieceBytes), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t first = 0;  // element of the tensor, among all
    for (const auto& t : tensors) {
      const std::int64_t count = element_count(view_of(t).shape);
      const auto place = [&](std::int64_t element) {
        return element >= first + count ? count : std::max<std::int64_t>(element - first, 0) / kTogether * kTogether;
      };
      if (place(begin) < place(end)) f(t, place(begin), place(end));
      first += count;
      if (first >= end) return;
    }
  });
}

double rate_of(const SgdArgs& args) { return args.replayed ? *args.replayed : args.learning_rate; }

// The settings are template arguments where a multiplication by zero would not do: infinity times zero is NaN, and an
// uninitialised buffer must not be read at all.
template <class T, bool kDecay>
void plain_step(const SgdArgs& args, const SgdTensor& t, std::int64_t begin, std::int64_t end) {
  using C = functors::Compute<T>;
  T* parameter = data<T>(t.parameter);
  const T* gradient = data<T>(t.gradient);
  const C decay = static_cast<C>(args.weight_decay), rate = static_cast<C>(rate_of(args));
  const C sign = args.maximize ? C(-1) : C(1);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = begin; i < end; ++i) {
    const C p = parameter[i];
    C g = sign * static_cast<C>(gradient[i]);
    if constexpr (kDecay) g += decay * p;
    parameter[i] = static_cast<T>(p - rate * g);
  }
}

template <class T, bool kDecay, bool kFirst>
void momentum_step(const SgdArgs& args, const SgdTensor& t, std::int64_t begin, std::int64_t end) {
  using C = functors::Compute<T>;
  T* parameter = data<T>(t.parameter);
  const T* gradient = data<T>(t.gradient);
  T* momentum = data<T>(t.momentum);
  const C decay = static_cast<C>(args.weight_decay), rate = static_cast<C>(rate_of(args));
  const C sign = args.maximize ? C(-1) : C(1);
  const C keep = static_cast<C>(args.momentum), take = static_cast<C>(1 - args.dampening);
  const bool nesterov = args.nesterov;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = begin; i < end; ++i) {
    const C p = parameter[i];
    C g = sign * static_cast<C>(gradient[i]);
    if constexpr (kDecay) g += decay * p;
    C buffer = g;
    if constexpr (!kFirst) buffer = keep * static_cast<C>(momentum[i]) + take * g;
    momentum[i] = static_cast<T>(buffer);
    parameter[i] = static_cast<T>(p - rate * math::select(nesterov, g + keep * buffer, buffer));
  }
}

template <class T>
void sgd_tensor(const SgdArgs& args, const SgdTensor& t, std::int64_t begin, std::int64_t end) {
  const bool decay = args.weight_decay != 0;
  if (!t.momentum.view.present) return (decay ? plain_step<T, true> : plain_step<T, false>)(args, t, begin, end);
  if (t.first_step) return (decay ? momentum_step<T, true, true> : momentum_step<T, false, true>)(args, t, begin, end);
  return (decay ? momentum_step<T, true, false> : momentum_step<T, false, false>)(args, t, begin, end);
}

template <class C>
[[gnu::noinline]] functors::AdamConstants<C> constants_of(const AdamArgs& args, const AdamTensor& t) {
  functors::AdamConstants<C> constants = functors::adam_constants<C>(args, t.step);
  if (t.replayed) {
    constants.step_size = static_cast<C>(t.replayed[0]);
    constants.root_correction = static_cast<C>(t.replayed[1]);
    constants.keep = static_cast<C>(t.replayed[2]);
  }
  return constants;
}

template <class T, bool kFirst, bool kAmsgrad>
void adam_loop(const AdamArgs& args, const AdamTensor& t, std::int64_t begin, std::int64_t end) {
  using C = functors::Compute<T>;
  const functors::AdamConstants<C> constants = constants_of<C>(args, t);
  T* parameter = data<T>(t.parameter);
  const T* gradient = data<T>(t.gradient);
  T* exp_avg = data<T>(t.exp_avg);
  T* exp_avg_sq = data<T>(t.exp_avg_sq);
  T* largest = kAmsgrad ? data<T>(t.max_exp_avg_sq) : nullptr;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = begin; i < end; ++i) {
    functors::AdamState<C> state{parameter[i]};
    if constexpr (!kFirst) {
      state.exp_avg = exp_avg[i];
      state.exp_avg_sq = exp_avg_sq[i];
      if constexpr (kAmsgrad) state.max_exp_avg_sq = largest[i];
    }
    functors::adam_step<C, kAmsgrad>(constants, gradient[i], state);
    parameter[i] = static_cast<T>(state.parameter);
    exp_avg[i] = static_cast<T>(state.exp_avg);
    exp_avg_sq[i] = static_cast<T>(state.exp_avg_sq);
    if constexpr (kAmsgrad) largest[i] = static_cast<T>(state.max_exp_avg_sq);
  }
}

template <class T>
void adam_tensor(const AdamArgs& args, const AdamTensor& t, std::int64_t begin, std::int64_t end) {
  const bool first = t.step == 1;
  if (t.max_exp_avg_sq.view.present)
    return (first ? adam_loop<T, true, true> : adam_loop<T, false, true>)(args, t, begin, end);
  return (first ? adam_loop<T, true, false> : adam_loop<T, false, false>)(args, t, begin, end);
}

// True when all products are finite.
template <class T>
bool unscale_tensor(const InOut& gradient, double by, std::int64_t begin, std::int64_t end) {
  using C = functors::Compute<T>;
  const C factor = static_cast<C>(by);
  T* elements = data<T>(gradient);
  // Integers, and one number for all elements: a comparison for each would keep this from becoming vector code.
  functors::BitsOf<T> largest = 0;
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = begin; i < end; ++i) {
    const T product = static_cast<T>(static_cast<C>(elements[i]) * factor);
    elements[i] = product;
    const functors::BitsOf<T> exponent = functors::exponent_bits(product);
    largest = exponent > largest ? exponent : largest;
  }
  return largest < functors::kExponentMask<T>;
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const SgdArgs& args) {
  for (const SgdTensor& t : args.tensors) check_floating(SgdArgs::kName, t.parameter.view.dtype, stream);
  launch(stream, args, [](const SgdArgs& a) {
    const auto parameter = [](const SgdTensor& t) -> const View& { return t.parameter.view; };
    for_elements(a.tensors, 5, parameter, [&](const SgdTensor& t, std::int64_t begin, std::int64_t end) {
      dispatch_floating(t.parameter.view.dtype, [&]<class T>(Type<T>) { sgd_tensor<T>(a, t, begin, end); });
    });
  });
}

void Kernels::enqueue(const Stream& stream, const AdamArgs& args) {
  for (const AdamTensor& t : args.tensors) check_floating(AdamArgs::kName, t.parameter.view.dtype, stream);
  launch(stream, args, [](const AdamArgs& a) {
    const auto parameter = [](const AdamTensor& t) -> const View& { return t.parameter.view; };
    for_elements(a.tensors, 7, parameter, [&](const AdamTensor& t, std::int64_t begin, std::int64_t end) {
      dispatch_floating(t.parameter.view.dtype, [&]<class T>(Type<T>) { adam_tensor<T>(a, t, begin, end); });
    });
  });
}

void Kernels::enqueue(const Stream& stream, const UnscaleArgs& args) {
  for (const InOut& gradient : args.gradients) check_floating(UnscaleArgs::kName, gradient.view.dtype, stream);
  launch(stream, args, [](const UnscaleArgs& a) {
    std::atomic<bool> finite = true;
    const auto view = [](const InOut& gradient) -> const View& { return gradient.view; };
    for_elements(a.gradients, 2, view, [&](const InOut& gradient, std::int64_t begin, std::int64_t end) {
      dispatch_floating(gradient.view.dtype, [&]<class T>(Type<T>) {
        if (!unscale_tensor<T>(gradient, a.factor, begin, end)) finite.store(false, std::memory_order_relaxed);
      });
    });
    if (!finite.load(std::memory_order_relaxed)) *data<float>(a.found_inf) = 1;
  });
}

void Kernels::enqueue(const Stream& stream, const CopyManyArgs& args) {
  for (const CopyPair& t : args.tensors) check_floating(CopyManyArgs::kName, t.from.view.dtype, stream);
  launch(stream, args, [](const CopyManyArgs& a) {
    const auto view = [](const CopyPair& t) -> const View& { return t.from.view; };
    for_elements(a.tensors, 2, view, [](const CopyPair& t, std::int64_t begin, std::int64_t end) {
      const std::size_t size = size_of(t.from.view.dtype), at = static_cast<std::size_t>(begin) * size;
      std::memcpy(static_cast<std::byte*>(t.to.view.data) + at, static_cast<const std::byte*>(t.from.view.data) + at,
                  static_cast<std::size_t>(end - begin) * size);
    });
  });
}

}  // namespace lockstep::kernels::host
