// What the drill's module computes, in plain integer arithmetic: the results to compare with, bit for bit.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace drill {

using Integer = std::int64_t;
using Integers = std::vector<Integer>;

constexpr Integer kIn = 5, kOut = 3;

inline std::vector<double> exact(const Integers& values) {
  std::vector<double> result;
  for (const Integer value : values) {
    if (value > (Integer{1} << 53) || value < -(Integer{1} << 53))
      throw std::logic_error("the drill's own numbers grew too large");
    result.push_back(static_cast<double>(value));
  }
  return result;
}

// The sizes of the pieces of a batch, as documented: chunks of ceil(n / devices), or as even as can be.
inline Integers piece_sizes(Integer rows, Integer devices, bool balanced) {
  Integers sizes;
  const Integer chunk = (rows + devices - 1) / devices;
  for (Integer i = 0, left = rows; i < devices && left > 0; ++i) {
    const Integer size = balanced ? rows / devices + (i < rows % devices ? 1 : 0) : std::min(chunk, left);
    if (size > 0) sizes.push_back(size);
    left -= size;
  }
  return sizes;
}

// Distinct for every element, and for every use of another `salt`.
inline Integers numbers(Integer count, Integer salt) {
  Integers result;
  for (Integer i = 0; i < count; ++i) result.push_back((i + 1 + salt % 7) * (i % 2 == 0 ? 1 : -1));
  return result;
}

struct Model {
  Integers scale = {3, -2, 5, 7, 1}, shift = {1, 4, -3, 2, 6};  // trained
  Integers frozen = {2, 1, -3, 1, 2};
  Integers mix = {1, -2, 3, 4, 1, -1, 2, 2, 5, -3, 1, 2, 1, 3, -2};  // kIn x kOut, frozen
  Integer seen = 0;                                                  // a buffer: rows that home has trained on
  Integers scale_speed = Integers(kIn), shift_speed = Integers(kIn);

  // [rows, kOut]. In training each replica adds the rows of its piece to its own copy of `seen` first.
  Integers forward(const Integers& x, const Integers& sizes, bool training) const {
    Integers y;
    Integer row = 0;
    for (const Integer size : sizes) {
      const Integer last = row + size;
      for (; row < last; ++row) {
        for (Integer o = 0; o < kOut; ++o) {
          Integer sum = seen + (training ? size : 0);
          for (Integer i = 0; i < kIn; ++i) sum += hidden(x, row, i) * at(mix, i * kOut + o);
          y.push_back(sum);
        }
      }
    }
    return y;
  }

  struct Gradients {
    Integers scale = Integers(kIn), shift = Integers(kIn), x;
  };
  // Of sum(y * c).
  Gradients backward(const Integers& x, const Integers& c) const {
    Gradients g;
    const Integer rows = static_cast<Integer>(x.size()) / kIn;
    for (Integer row = 0; row < rows; ++row) {
      for (Integer i = 0; i < kIn; ++i) {
        Integer h = 0;
        for (Integer o = 0; o < kOut; ++o) h += at(c, row * kOut + o) * at(mix, i * kOut + o);
        h *= at(frozen, i);
        g.scale[static_cast<std::size_t>(i)] += h * at(x, row * kIn + i);
        g.shift[static_cast<std::size_t>(i)] += h;
        g.x.push_back(h * at(scale, i));
      }
    }
    return g;
  }

  // SGD with learning rate 1 and momentum 1.
  void step(const Gradients& g, Integer home_rows) {
    for (std::size_t i = 0; i < scale.size(); ++i) {
      scale[i] -= scale_speed[i] += g.scale[i];
      shift[i] -= shift_speed[i] += g.shift[i];
    }
    seen += home_rows;
  }
  // What a new optimizer knows.
  void forget_speed() { scale_speed = shift_speed = Integers(kIn); }

 private:
  static Integer at(const Integers& list, Integer index) { return list[static_cast<std::size_t>(index)]; }
  Integer hidden(const Integers& x, Integer row, Integer i) const {
    return (at(x, row * kIn + i) * at(scale, i) + at(shift, i)) * at(frozen, i);
  }
};

}  // namespace drill
