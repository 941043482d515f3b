// What training data is: samples by index.
//
//   struct Pictures {
//     std::int64_t size() const;
//     std::pair<Tensor, std::int64_t> get(std::int64_t index) const;  // picture, label
//   };
//
// A DataLoader calls get() from its worker threads, on one object from several threads at once unless it is told to
// give each a copy of its own. Samples hold cpu tensors.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "lockstep/tensor/context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

template <class D>
concept Dataset = requires(const D& dataset, std::int64_t index) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.get(index);
  requires !std::is_void_v<decltype(dataset.get(index))>;
};

template <Dataset D>
using SampleOf = std::remove_cvref_t<decltype(std::declval<const D&>().get(std::int64_t{}))>;

// Row i of each of N tensors. The rows are views of them.
template <std::size_t N>
class TensorDataset {
 public:
  // Throws InvalidArgument unless all have the same size along dimension 0.
  template <std::same_as<Tensor>... T>
  explicit TensorDataset(const T&... tensors) : tensors_{tensors.detach()...} {
    for (const Tensor& tensor : tensors_)
      LOCKSTEP_CHECK(tensor.rank() > 0 && tensor.shape()[0] == tensors_[0].shape()[0],
                     "[TensorDataset] expected tensors of one size along dimension 0, got ", tensors_[0], " and ",
                     tensor);
  }
  std::int64_t size() const { return tensors_[0].shape()[0]; }
  std::array<Tensor, N> get(std::int64_t index) const {
    std::array<Tensor, N> sample;
    for (std::size_t i = 0; i < N; ++i) sample[i] = tensors_[i].select(0, index);
    return sample;
  }

 private:
  std::array<Tensor, N> tensors_;
};
template <class... T>
TensorDataset(const T&...) -> TensorDataset<sizeof...(T)>;

}  // namespace lockstep
