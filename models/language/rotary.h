// Rotary position embedding (Su et al., 2021): pairs of elements of a head are turned by angles that grow with the
// token's place, so that products of queries and keys depend on how far they are apart.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Which elements of a head of D make a pair: i and i + D / 2 (GPT-NeoX; Llama and Qwen as transformers publishes them),
// or 2 i and 2 i + 1 (GPT-J; Llama's original files).
enum class RotaryPairs : std::uint8_t { halves, neighbours };

enum class RotaryScaling : std::uint8_t { none, linear, llama3, yarn };

struct RotaryOptions {
  double theta = 10000;
  RotaryPairs pairs = RotaryPairs::halves;
  // How a model that was trained on shorter texts is stretched; what follows counts for some ways alone.
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1;                         // of all
  double low_freq_factor = 1;                // llama3
  double high_freq_factor = 4;               // llama3
  std::int64_t original_positions = 8192;    // llama3, yarn: of the training
  double beta_fast = 32, beta_slow = 1;      // yarn
  std::optional<double> attention_factor{};  // yarn: of cosines and sines; 0.1 ln(factor) + 1
  bool truncate = true;                      // yarn: the ends of its ramp are whole numbers
};

// What a pair's angle grows by with every token, for the first `dims` (even) elements of a head; dims / 2 numbers.
// Throws InvalidArgument for sizes and factors that make no sense.
LOCKSTEP_API std::vector<float> rotary_frequencies(std::int64_t dims, const RotaryOptions& options);

// Cosines and sines for N tokens, as `rotate` takes them: [N, 1, dims], the sines with the sign of their place.
struct RotaryAngles {
  Tensor cosines, sines;
  RotaryPairs pairs = RotaryPairs::halves;
  void fields(auto& f) { f(cosines, sines); }
};

// The angles of a model: a value without parameters. Made anew for each call from the positions, which is a handful of
// operations, once for all layers, and knows no largest position.
class LOCKSTEP_API RotaryEmbedding {
 public:
  RotaryEmbedding(std::int64_t dims, const RotaryOptions& options);
  // positions [N] (integers), on any device. Angles are computed in f32 and given in `dtype`. The first call on a
  // stream copies the frequencies to its device, for the calls that follow; a graph is captured after it. Thread-safe.
  RotaryAngles at(const Tensor& positions, DType dtype) const;

 private:
  class Steps;

  RotaryPairs pairs_;
  double factor_;                 // of cosines and sines
  std::shared_ptr<Steps> steps_;  // shared by copies
};

// x [N, H, D], D at least the angles' dims: the elements behind them stay as they are. Differentiable.
LOCKSTEP_API Tensor rotate(const Tensor& x, const RotaryAngles& angles);

}  // namespace lockstep
