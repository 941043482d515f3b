#include "lockstep/models/language/rotary.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double llama3(double frequency, const RotaryOptions& o) {
  const auto trained = static_cast<double>(o.original_positions);
  const double wavelength = kTurn / frequency;
  if (wavelength < trained / o.high_freq_factor) return frequency;
  if (wavelength > trained / o.low_freq_factor) return frequency / o.factor;
  const double smooth = (trained / wavelength - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  return (1 - smooth) * frequency / o.factor + smooth * frequency;
}

// Pairs that turn often within a training text stay as they are, those that hardly turn are stretched.
struct YarnRamp {
  double low, high;
  YarnRamp(double dims, const RotaryOptions& o) {
    const auto pair_that_turns = [&](double times) {
      return dims * std::log(static_cast<double>(o.original_positions) / (times * kTurn)) / (2 * std::log(o.theta));
    };
    low = pair_that_turns(o.beta_fast), high = pair_that_turns(o.beta_slow);
    if (o.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, dims - 1);
    if (low == high) high += 0.001;
  }
  double operator()(double frequency, double pair, double factor) const {
    const double stretched = std::clamp((pair - low) / (high - low), 0.0, 1.0);
    return frequency / factor * stretched + frequency * (1 - stretched);
  }
};

double amplitude(const RotaryOptions& o) {
  if (o.scaling != RotaryScaling::yarn) return 1;
  return o.attention_factor.value_or(o.factor > 1 ? 0.1 * std::log(o.factor) + 1 : 1);
}

}  // namespace

std::vector<float> rotary_frequencies(std::int64_t dims, const RotaryOptions& o) {
  LOCKSTEP_CHECK(dims > 0 && dims % 2 == 0, "[rotary] expected an even number of elements to turn, got ", dims);
  LOCKSTEP_CHECK(o.theta > 1, "[rotary] expected a theta above 1, got ", o.theta);
  LOCKSTEP_CHECK(o.factor > 0 && o.original_positions > 0,
                 "[rotary] expected a factor and original positions above 0, ", "got ", o.factor, " and ",
                 o.original_positions);
  LOCKSTEP_CHECK(
      o.scaling != RotaryScaling::llama3 || (o.low_freq_factor > 0 && o.high_freq_factor > o.low_freq_factor),
      "[rotary] expected high_freq_factor > low_freq_factor > 0, got ", o.high_freq_factor, " and ", o.low_freq_factor);
  LOCKSTEP_CHECK(o.scaling != RotaryScaling::yarn || (o.beta_fast > 0 && o.beta_slow > 0),
                 "[rotary] expected beta_fast and beta_slow above 0, got ", o.beta_fast, " and ", o.beta_slow);
  const YarnRamp ramp(static_cast<double>(dims), o);
  std::vector<float> all;
  for (std::int64_t pair = 0; pair < dims / 2; ++pair) {
    const auto place = static_cast<double>(pair);
    double frequency = std::pow(o.theta, -2 * place / static_cast<double>(dims));
    switch (o.scaling) {
      case RotaryScaling::none:
        break;
      case RotaryScaling::linear:
        frequency /= o.factor;
        break;
      case RotaryScaling::llama3:
        frequency = llama3(frequency, o);
        break;
      case RotaryScaling::yarn:
        frequency = ramp(frequency, place, o.factor);
        break;
    }
    all.push_back(static_cast<float>(frequency));
  }
  return all;
}

// [dims]: the frequencies as they belong to the elements, with the signs of their sines; where they are used.
class RotaryEmbedding::Steps {
 public:
  explicit Steps(Tensor at_home) : home_(std::move(at_home)) {}

  // A copy for each stream, in whose order it was made: nothing else has to be waited for.
  Tensor on(Device device) {
    if (device == home_.device()) return home_;
    const Stream stream = current_stream(device);
    const std::lock_guard lock(mutex_);
    for (const auto& [known, copy] : copies_)
      if (known == &stream.body()) return copy;
    Tensor copy = home_.to(device);
    // The owner of another library's stream may destroy it once no memory is in its order.
    if (!detail::state_of(stream).foreign) copies_.emplace_back(&stream.body(), copy);
    return copy;
  }

 private:
  const Tensor home_;
  std::mutex mutex_;
  std::vector<std::pair<const detail::StreamBody*, Tensor>> copies_;  // bodies last as long as the process
};

RotaryEmbedding::RotaryEmbedding(std::int64_t dims, const RotaryOptions& options)
    : pairs_(options.pairs), factor_(amplitude(options)) {
  const std::vector<float> frequencies = rotary_frequencies(dims, options);
  // Element a of a pair (a, b) becomes a cos - b sin, and b becomes b cos + a sin.
  std::vector<float> steps(2 * frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const bool halves = pairs_ == RotaryPairs::halves;
    steps[halves ? i : 2 * i] = -frequencies[i];
    steps[halves ? i + frequencies.size() : 2 * i + 1] = frequencies[i];
  }
  steps_ = std::make_shared<Steps>(from_data(steps, {dims}, {.dtype = DType::f32}));
}

RotaryAngles RotaryEmbedding::at(const Tensor& positions, DType dtype) const {
  LOCKSTEP_CHECK(positions.rank() == 1, "[rotary] expected positions [N], got ", positions);
  const NoGrad no_grad;
  const Tensor angles = positions.to(DType::f32).reshape({-1, 1, 1}) * steps_->on(positions.device());
  Tensor cosines = cos(angles), sines = sin(angles);
  if (factor_ != 1) cosines.mul_(factor_), sines.mul_(factor_);
  return {cosines.to(dtype), sines.to(dtype), pairs_};
}

Tensor rotate(const Tensor& x, const RotaryAngles& angles) {
  const std::int64_t dims = angles.cosines.size(-1);
  LOCKSTEP_CHECK(x.rank() == 3 && x.size(0) == angles.cosines.size(0) && x.size(2) >= dims,
                 "[rotary] expected x [N, H, D] for angles ", angles.cosines, ", got ", x);
  if (x.size(2) > dims) return cat({rotate(x.narrow(2, 0, dims), angles), x.narrow(2, dims, x.size(2) - dims)}, 2);
  const std::int64_t half = dims / 2;
  const Tensor others = angles.pairs == RotaryPairs::halves
                            ? cat({x.narrow(2, half, half), x.narrow(2, 0, half)}, 2)
                            : flip(x.reshape({x.size(0), x.size(1), half, 2}), {3}).reshape(x.shape());
  return x * angles.cosines + others * angles.sines;
}

}  // namespace lockstep
