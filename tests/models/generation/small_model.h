// A language model as a program of one's own has it: two layers of grouped attention, positions that are added, and the
// whole sequence at once, to compare with.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/models/generation/language_model.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"

namespace lockstep::test {

struct SmallModel : LanguageModel {
  static constexpr std::int64_t kWords = 37, kPositions = 200, kHeads = 6, kKeyHeads = 2, kSize = 4, kWidth = 24;
  static constexpr int kLayers = 2;

  explicit SmallModel(Device device = Device::cpu(), DType dtype = DType::f32, std::uint64_t seed = 5)
      : device_(device), dtype_(dtype) {
    manual_seed(seed);
    const auto weights = [&](const Shape& shape, double scale) { return (randn(shape) * scale).to(dtype).to(device); };
    words = weights({kWords, kWidth}, 1);
    places = weights({kPositions, kWidth}, 1);
    for (int i = 0; i < kLayers; ++i) {
      q.push_back(weights({kWidth, kHeads * kSize}, 0.4));
      k.push_back(weights({kWidth, kKeyHeads * kSize}, 0.4));
      v.push_back(weights({kWidth, kKeyHeads * kSize}, 0.4));
      out.push_back(weights({kHeads * kSize, kWidth}, 0.4));
    }
    head = weights({kWidth, kWords}, 0.5);
  }

  LanguageModelShape shape() const override {
    return {.layers = kLayers, .heads = kKeyHeads, .head_size = kSize, .vocabulary = kWords, .positions = kPositions};
  }
  Device device() const override { return device_; }
  DType dtype() const override { return dtype_; }

  Tensor decode(const DecodeStep& step) const override {
    ++calls;
    most_tokens = std::max(most_tokens, step.tokens.size(0));
    if (fails > 0 && --fails == 0) throw Error("the model fails, as was asked for");
    const std::int64_t rows = step.tokens.size(0);
    Tensor x = index_select(words, 0, step.tokens) + index_select(places, 0, step.positions);
    for (int i = 0; i < attends; ++i) {
      const auto at = static_cast<std::size_t>(i % kLayers);
      const Tensor y = layer_norm(x, {kWidth});
      const Tensor seen = step.attention->attend(i, matmul(y, q[at]).reshape({rows, kHeads, kSize}),
                                                 matmul(y, k[at]).reshape({rows, kKeyHeads, kSize}),
                                                 matmul(y, v[at]).reshape({rows, kKeyHeads, kSize}));
      x = x + matmul(seen.reshape({rows, kHeads * kSize}), out[at]);
    }
    // Of rows that are not there: an error at once, or when the host waits for the device.
    const Tensor wanted = bad_logits ? full_like(step.wanted, 1000) : step.wanted;
    return matmul(layer_norm(index_select(x, 0, wanted), {kWidth}), head);
  }

  // The logits behind every token of one sequence, without a cache: [tokens, words].
  Tensor whole(const std::vector<std::int64_t>& tokens) const {
    const NoGrad no_grad;
    const auto rows = static_cast<std::int64_t>(tokens.size());
    Tensor x = index_select(words, 0, from_data(tokens, {rows}, {.device = device_})) + places.narrow(0, 0, rows);
    for (std::size_t i = 0; i < kLayers; ++i) {
      const Tensor y = layer_norm(x, {kWidth});
      const auto heads = [&](const Tensor& weight, std::int64_t count) {
        return matmul(y, weight).reshape({1, rows, count, kSize}).transpose(1, 2);
      };
      const Tensor seen = scaled_dot_product_attention(heads(q[i], kHeads), heads(k[i], kKeyHeads),
                                                       heads(v[i], kKeyHeads), {.causal = true, .enable_gqa = true});
      x = x + matmul(seen.transpose(1, 2).reshape({rows, kHeads * kSize}), out[i]);
    }
    return matmul(layer_norm(x, {kWidth}), head);
  }

  // Greedy tokens behind the prompt, by the whole sequence each time.
  std::vector<std::int64_t> continued(std::vector<std::int64_t> tokens, std::int64_t count) const {
    const auto prompt = static_cast<std::ptrdiff_t>(tokens.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const Tensor logits = whole(tokens);
      tokens.push_back(argmax(logits.select(0, logits.size(0) - 1)).item<std::int64_t>());
    }
    return {tokens.begin() + prompt, tokens.end()};
  }

  Tensor words, places, head;
  std::vector<Tensor> q, k, v, out;
  int attends = kLayers;  // how many times decode attends
  mutable int fails = 0;  // the call that throws, counted from the next one; 0: none
  mutable bool bad_logits = false;
  mutable int calls = 0;  // of decode
  mutable std::int64_t most_tokens = 0;

 private:
  Device device_;
  DType dtype_;
};

// Words in an order that looks like none.
inline std::vector<std::int64_t> prompt_of(std::int64_t length, std::int64_t seed = 0) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < length; ++i) tokens.push_back((i * i * 7 + i * 3 + seed * 11) % SmallModel::kWords);
  return tokens;
}

}  // namespace lockstep::test
