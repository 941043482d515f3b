// What sums gradients over replicas or ranks: one of them is not put around another. Private to the library.
#pragma once

#include <type_traits>
#include <utility>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

template <class M, class Signature>
class DataParallel;
template <IsModule M>
class DistributedDataParallel;
template <IsModule M>
class FullyShardedDataParallel;

namespace detail {

template <class M, class Signature>
std::true_type sums_gradients(const DataParallel<M, Signature>*);
template <IsModule M>
std::true_type sums_gradients(const DistributedDataParallel<M>*);
template <IsModule M>
std::true_type sums_gradients(const FullyShardedDataParallel<M>*);
std::false_type sums_gradients(const void*);
// Whether M, or what it derives from, does.
template <class M>
inline constexpr bool kSumsGradients = decltype(sums_gradients(std::declval<const M*>()))::value;

}  // namespace detail
}  // namespace lockstep
