// Norms of a batch in pieces against one norm of the whole batch.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"
#include "lockstep/tensor/nn/norm.h"
#include "parallel/support.h"

namespace parallel_test {

inline constexpr std::int64_t kChannels = 3;

// A norm and what goes in: f64 [rows, channels, ..rest] in all, `rows` of each piece.
struct NormCase {
  std::string name;
  std::vector<std::int64_t> rows;
  Shape rest = {};
  BatchNormOptions options = {};
  bool permuted = false;  // pieces are views of other layouts
  DType dtype = DType::f64;

  Shape shape(std::int64_t count) const {
    Shape shape{count, kChannels};
    for (const std::int64_t size : rest) shape.push_back(size);
    return shape;
  }
  std::int64_t total() const {
    std::int64_t total = 0;
    for (const std::int64_t count : rows) total += count;
    return total;
  }
  Tensor whole(std::uint64_t seed) const { return (noise(shape(total()), seed) * 3.0 + 5.0).to(dtype); }
  Tensor piece(std::uint64_t seed, std::size_t index, Device device) const {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < index; ++i) begin += rows[i];
    const Tensor x = whole(seed).narrow(0, begin, rows[index]).contiguous().to(device);
    return permuted ? x.transpose(0, -1).contiguous().transpose(0, -1) : x;
  }
};

// What a training step with the norm leaves, as f64.
struct NormResult {
  Doubles y, dx, dweight, dbias, state;
};

inline Doubles wide_values(const Tensor& x) { return x.defined() ? values(x.detach().to(DType::f64)) : Doubles{}; }
inline Doubles state_of(const ModuleBase& norm) {
  Doubles all;
  for (const Parameter& buffer : norm.buffers())
    for (const double value : wide_values(buffer.tensor())) all.push_back(value);
  return all;
}

template <class Norm>
Norm make_norm(const NormCase& of) {
  Norm norm(kChannels, of.options);
  if (of.options.affine) {
    norm.weight.assign(noise({kChannels}, 21));
    norm.bias.assign(noise({kChannels}, 22));
  }
  norm.to(of.dtype);
  return norm;
}

// Two steps, so that what the first one leaves is seen by the second.
template <class Norm>
NormResult train_norm(Norm& norm, Tensor x, const Tensor& dy, bool wants_gradient = true) {
  Tensor y;
  for (int step = 0; step < 2; ++step) {
    norm.zero_grad();
    x = x.detach();
    if (wants_gradient) x.set_requires_grad();
    y = norm(step == 0 ? x * 2.0 : x);
    y.backward(dy);
  }
  const auto grad = [](const Parameter& parameter) {
    return parameter.defined() ? wide_values(parameter.grad()) : Doubles{};
  };
  return {wide_values(y), wants_gradient ? wide_values(x.grad()) : Doubles{}, grad(norm.weight), grad(norm.bias),
          state_of(norm)};
}

inline double distance(const Doubles& a, const Doubles& b) {
  if (a.size() != b.size()) return 1e300;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double between = std::abs(a[i] - b[i]);
    if (!(between <= largest)) largest = between;  // also where it is no number
  }
  return largest;
}

// Pieces together: what they give one after the other, and the sums of what each has.
inline NormResult together(const std::vector<NormResult>& pieces) {
  NormResult all;
  const auto append = [](Doubles& to, const Doubles& from) { to.insert(to.end(), from.begin(), from.end()); };
  const auto add = [](Doubles& to, const Doubles& from) {
    to.resize(std::max(to.size(), from.size()));
    for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  };
  for (const NormResult& piece : pieces) {
    append(all.y, piece.y), append(all.dx, piece.dx);
    add(all.dweight, piece.dweight), add(all.dbias, piece.dbias);
  }
  all.state = pieces[0].state;
  return all;
}

inline double distance(const NormResult& a, const NormResult& b) {
  return std::max({distance(a.y, b.y), distance(a.dx, b.dx), distance(a.dweight, b.dweight), distance(a.dbias, b.dbias),
                   distance(a.state, b.state)});
}

// For pieces that make up at least two rows.
inline std::vector<NormCase> norm_cases() {
  BatchNormOptions average, plain, untracked;
  average.momentum = std::nullopt;
  plain.affine = false;
  untracked.track_running_stats = false;
  return {{"vectors", {3, 3, 3}},
          {"uneven", {4, 1, 2}},
          {"one each", {1, 1, 1}},
          {"empty first", {0, 5, 1}, {}, average},
          {"empty last", {2, 3, 0}, {4}},
          {"pictures", {2, 1, 3}, {4, 2}},
          {"permuted pictures", {2, 1, 3}, {4, 2}, {}, true},
          {"average", {2, 1, 3}, {4, 2}, average},
          {"without weights", {1, 4, 1}, {3}, plain},
          {"without running statistics", {1, 4, 2}, {}, untracked}};
}

}  // namespace parallel_test
