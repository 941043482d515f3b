// Random numbers. Every random operation draws from Philox 4x32-10, a function of a key, a stream and the position of
// the element, and nothing else: neither the device nor timing matters.
//
// The key is the thread's random_seed; the stream mixes its random_stream with random_counter, which counts the random
// operations of the thread. So after manual_seed the same operations in the same order give the same numbers. A replica
// gets a random_stream of its own from the engine, hence masks of its own, the same in every run.
#pragma once

#include "lockstep/kernels/args.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {

// Uniform in [0, 1).
LOCKSTEP_API Tensor rand(const Shape& shape, const TensorOptions& options = {});
// Normal with mean 0 and standard deviation 1.
LOCKSTEP_API Tensor randn(const Shape& shape, const TensorOptions& options = {});
// Integers in [low, high), i64 by default.
LOCKSTEP_API Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, const TensorOptions& options = {});
// 1 with probability p, else 0.
LOCKSTEP_API Tensor bernoulli(double p, const Shape& shape, const TensorOptions& options = {});
// The integers below `count` in an order by chance, i64.
LOCKSTEP_API Tensor randperm(std::int64_t count, Device device = Device::cpu());
// Draws `count` positions along the last dimension of [classes] or [rows, classes], i64 [count] or [rows, count], with
// probabilities proportional to the weights: finite, not negative, and, of at least one class, positive (without
// replacement: of at least `count` classes), which is not checked.
LOCKSTEP_API Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement = false);
LOCKSTEP_API Tensor rand_like(const Tensor& like);
LOCKSTEP_API Tensor randn_like(const Tensor& like);

namespace detail {
struct RandomState {
  std::uint64_t key, stream;
  const std::uint64_t* replayed = nullptr;  // in a capture: device memory that has both, other ones at every replay
};
// What the next random operation of this thread, on that device, draws from; counts it. In a capture of the device
// nothing is counted in the end: each replay goes on from the numbers of the thread that replays, as if it had made the
// calls.
LOCKSTEP_API RandomState next_random(Device device = Device::cpu());
// Overwrites a contiguous tensor.
LOCKSTEP_API void draw(RandomKind kind, const Tensor& tensor, double a, double b = 0);
}  // namespace detail

}  // namespace lockstep
