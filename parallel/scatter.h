// scatter: a batch is divided among devices. Tensors are split along a dimension; tuples, vectors, maps, optionals,
// variants, structs with fields and Values are divided element by element and keep their types; a PackedSequence is
// divided by its sequences; everything else is copied. A type in which tensors would be passed over does not compile,
// as far as that can be seen from its type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/scatter_policy.h"
#include "lockstep/parallel/scatter_tensor.h"
#include "lockstep/tensor/tree.h"
#include "lockstep/tensor/value.h"

namespace lockstep {

// The pieces of a value and where each one is.
template <class T>
struct Pieces {
  std::vector<T> values;
  std::vector<Device> devices;  // as many
};

namespace detail {

// A container that is divided already (each of its parts is meant for one device) has, next to for_each_tensor,
//
//   template <class F> void for_each_tensor(F&& f) {
//     if constexpr (requires { f.divided(*this); }) f.divided(*this);
//     else … }
//   std::size_t piece_count() const;                    // how many parts
//   void take_piece(std::size_t piece, Device device);  // becomes that part alone, moved to the device
//   std::int64_t sample_count() const;                  // in all parts; optional, see DataParallel::reduce_with
//   std::vector<std::int64_t> part_samples() const;     // in each part; optional: tensors are divided alike then
//
// and is then asked for its parts instead of being entered.
struct PlanVisitor {
  ScatterPlan& plan;
  void operator()(const Tensor& tensor) { plan.add(tensor); }
  void sequences(const PackedSequence& packed) { plan.add(packed); }
  template <class C>
  void divided(const C& container) {
    if constexpr (requires { container.part_samples(); })
      plan.add_divided(container.piece_count(), container.part_samples());
    else
      plan.add_divided(container.piece_count());
  }
};
struct PieceVisitor {
  ScatterPlan& plan;
  std::size_t piece;
  std::size_t next = 0;  // tensors are met in the same order as when the plan was made
  void operator()(Tensor& tensor) { tensor = plan.take(next++, piece); }
  void sequences(PackedSequence& packed) { plan.take(next++, piece, packed); }
  template <class C>
  void divided(C& container) {
    container.take_piece(piece, plan.piece_devices()[piece]);
  }
};
struct SizeVisitor {
  std::int64_t dim;
  std::optional<std::int64_t> size = std::nullopt;
  void operator()(const Tensor& tensor) {
    if (!size && tensor.rank() > 0) size = tensor.size(dim);
  }
  void sequences(const PackedSequence& packed) {
    if (!size) size = packed.sample_count();
  }
  template <class C>
  void divided(const C& container) {
    if constexpr (requires { container.sample_count(); }) {
      if (!size) size = container.sample_count();
    }
  }
};

// Finds how many samples there are in each part of the containers of a value that are divided already.
struct SamplesVisitor {
  std::vector<std::int64_t> samples = {};
  void operator()(const Tensor& /*tensor*/) {}
  template <class C>
  void divided(const C& container) {
    if constexpr (requires { container.part_samples(); }) {
      if (samples.empty()) samples = container.part_samples();
    }
  }
};
template <class T>
std::vector<std::int64_t> samples_of_parts(const T& value) {
  SamplesVisitor visitor;
  for_each_tensor(value, visitor);
  return std::move(visitor.samples);
}

// How many samples a piece has: those of its first tensor, or container that counts them; 1 without either.
template <class T>
std::int64_t piece_size(const T& piece, std::int64_t dim) {
  SizeVisitor visitor{dim};
  for_each_tensor(piece, visitor);
  return visitor.size.value_or(1);
}

}  // namespace detail

// As scatter, with the devices of the pieces: fewer than were given when the batch is smaller than the device count or
// the policy leaves some out.
template <class T>
Pieces<T> scatter_pieces(const T& value, std::span<const Device> devices, std::int64_t dim = 0,
                         const ScatterPolicy& policy = {}) {
  static_assert(std::is_copy_constructible_v<T>, "scatter copies what is not a tensor for every device");
  tree::check_tensors_found<T>();  // they would be copied whole to every device
  detail::ScatterPlan plan(devices, dim, policy);
  Pieces<T> pieces;
  if constexpr (std::is_same_v<T, Tensor>) {
    if (value.defined()) {
      plan.add(value);
      plan.split();
      pieces.values = plan.take(0);
    } else {
      pieces.values.resize(devices.size());
    }
  } else {
    detail::PlanVisitor visitor{plan};
    for_each_tensor(value, visitor);
    plan.split();
    pieces.values.reserve(plan.piece_devices().size());
    for (std::size_t i = 0; i < plan.piece_devices().size(); ++i) {
      T piece = value;
      detail::PieceVisitor take{plan, i};
      for_each_tensor(piece, take);
      pieces.values.push_back(std::move(piece));
    }
  }
  pieces.devices = plan.piece_devices();
  return pieces;
}

// Divides `value` among `devices`, one element of the result per piece. Tensors are split along `dim` (negative counts
// from the end) as `policy` says, or, beside containers that are divided already, into pieces of as many samples as
// theirs; packed sequences are divided in the caller's order, and those of a piece are packed anew, by one kernel where
// they are, before they are moved. All must give the same number of pieces, and what is not a tensor is copied once for
// each. A value without tensors gives one copy per device. An empty batch gives one empty piece on the first device.
//
// A piece on the device where it already is, is a view; the others are copied and usable at once on the caller's
// current stream of their device. Does not block. Differentiable any number of times.
// Throws InvalidArgument for a device that comes twice, for a tensor without dimensions (which {cpu} takes as it is),
// for tensors and containers that give different pieces, for a tensor that has not as many elements as the containers
// have samples, and for a policy that does not fit.
template <class T>
std::vector<T> scatter(const T& value, const std::vector<Device>& devices, std::int64_t dim = 0,
                       const ScatterPolicy& policy = {}) {
  return scatter_pieces(value, devices, dim, policy).values;
}

}  // namespace lockstep
