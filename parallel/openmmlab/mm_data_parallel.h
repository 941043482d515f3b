// MMDataParallel: DataParallel for batches of data containers, and for models that make their own steps. After mmcv's
// class.
//
//   MMDataParallel net(Detector{}, {.devices = accelerators()});
//   auto results = net(batch);                        // batch = collate(samples, samples_per_device)
//   MMDataParallel trained(Detector{}, {.devices = {Device::cuda(0)}});
//   auto log = trained.train_step(batch, optimizer);  // Detector::train_step, on one device
#pragma once

#include <concepts>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/openmmlab/data/data_container.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {
namespace detail {

// What there may be tensors in is scattered; the rest is handed over as it is.
template <class T>
concept ScatteredArgument = tree::finds_tensors<std::remove_cv_t<T>>() && std::copy_constructible<std::remove_cv_t<T>>;

// An argument of a step among those that are scattered: itself, or a reference.
template <class T>
auto step_argument(T& argument) {
  if constexpr (ScatteredArgument<T>)
    return std::remove_cv_t<T>(argument);
  else
    return std::ref(argument);
}
template <class T>
T& argument_of_step(T& scattered) {
  return scattered;
}
template <class T>
T& argument_of_step(std::reference_wrapper<T>& reference) {
  return reference.get();
}

LOCKSTEP_API void check_one_device(const char* step, const std::vector<Device>& devices);

}  // namespace detail

template <class M, class Signature = detail::SignatureOf<M>>
class MMDataParallel;

// `forward` as DataParallel's, on any number of devices: scatter gives each device its group of a collated
// DataContainer. Without devices (an explicit empty list, or no accelerator) the arguments are scattered to `cpu`, so
// that the module sees containers of one group there too, and the module is called directly.
template <class M, class R, class... Args>
class MMDataParallel<M, R(Args...)> : public DataParallel<M, R(Args...)> {
  using Base = DataParallel<M, R(Args...)>;

 public:
  // Moves the module to devices[0]. Throws InvalidArgument for a device that does not exist or comes twice.
  explicit MMDataParallel(M module, DataParallelOptions options = {}) : Base(std::move(module), std::move(options)) {
    this->scatters_to_cpu_ = true;
  }

  // The module's own train_step and val_step, called in this thread with the arguments scattered to the only device;
  // what they return is returned as it is. Arguments that hold no tensors, or that cannot be copied (an optimizer, an
  // OptimWrapper), are passed by reference. The overrides of the steps of `forward` are not asked. Throws
  // InvalidArgument with several devices, and for a module that is not on devices[0].
  template <class... A>
  auto train_step(A&&... arguments) const {
    return step(
        "train_step", [](M& module, auto&... scattered) { return module.train_step(scattered...); }, arguments...);
  }
  template <class... A>
  auto val_step(A&&... arguments) const {
    return step(
        "val_step", [](M& module, auto&... scattered) { return module.val_step(scattered...); }, arguments...);
  }

 private:
  template <class Method, class... A>
  auto step(const char* name, Method method, A&... arguments) const {
    detail::check_one_device(name, this->devices());
    return this->call_guarded([&](M& module) {
      const std::tuple<decltype(detail::step_argument(arguments))...> all{detail::step_argument(arguments)...};
      auto piece = this->devices().empty() ? this->without_devices(all)
                                           : std::move(scatter_pieces(all, this->devices(), this->dim()).values[0]);
      return std::apply([&](auto&... scattered) { return method(module, detail::argument_of_step(scattered)...); },
                        piece);
    });
  }
};

template <class M>
MMDataParallel(M) -> MMDataParallel<M>;
template <class M>
MMDataParallel(M, DataParallelOptions) -> MMDataParallel<M>;

}  // namespace lockstep
