// The input of pooling as windows read it.
#pragma once

#include <algorithm>
#include <bit>

#include "lockstep/kernels/common/conv.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {

struct Planes {
  std::int64_t count, height, width, out_height, out_width;

  Planes(const Shape& x, const Shape& y)
      : count(x[0] * x[1]), height(x[2]), width(x[3]), out_height(y[2]), out_width(y[3]) {}
};

// `count` elements in whole vectors.
template <class C>
std::int64_t whole_vectors(std::int64_t count) {
  return (count + kWidth<C> - 1) / kWidth<C> * kWidth<C>;
}

// Rows of the input with the padding written out, and with elements that lie a stride apart next to each other: so what
// a tap of the window reads for a row of windows is a row too. A row of the input is kept for the windows that share
// it.
template <class C>
class WindowRows {
 public:
  struct Taps {
    std::int64_t count;
    const C* const* values;       // of each tap, for output column 0 and those behind it, in whole vectors
    const std::int64_t* offsets;  // in the plane, of what output column 0 has; may be in the padding on the left
  };

  WindowRows(Scratch& scratch, const Planes& p, const Window2d& w, const C* x, C padding)
      : p_(p),
        w_(w),
        x_(x),
        // Of a stride, a dense window may read only the first elements.
        phases_(w.dilation[1] == 1 ? std::min(w.stride[1], w.kernel[1]) : w.stride[1]),
        phase_(whole_vectors<C>(p.out_width) + reach(1) / w.stride[1]),
        held_rows_(std::bit_ceil(static_cast<std::uint64_t>(reach(0) + 1))),
        held_(scratch.take<std::int64_t>(static_cast<std::int64_t>(held_rows_))),
        places_(scratch.take<std::int64_t>(w.kernel[1])),
        parts_(scratch.take<Range>(phases_)),
        values_(scratch.take<const C*>(std::int64_t{w.kernel[0]} * w.kernel[1])),
        offsets_(scratch.take<std::int64_t>(std::int64_t{w.kernel[0]} * w.kernel[1])) {
    const std::int64_t elements = static_cast<std::int64_t>(held_rows_) * phases_ * phase_;
    rows_ = scratch.take<C>(elements);
    std::fill_n(rows_, elements, padding);
    std::fill_n(held_, held_rows_, std::int64_t{-1});
    for (int c = 0; c < w.kernel[1]; ++c) {
      const std::int64_t at = std::int64_t{c} * w.dilation[1];
      places_[c] = at % w.stride[1] * phase_ + at / w.stride[1];
    }
    for (std::int64_t i = 0; i < phases_; ++i) parts_[i] = inside(i - w.padding[1], w.stride[1], p.width, phase_);
  }

  // Those of output row `oh` which are not in the padding above or below, row by row; valid until the next call.
  Taps taps(std::int64_t plane, std::int64_t oh) {
    std::int64_t count = 0;
    for (int r = 0; r < w_.kernel[0]; ++r) {
      const std::int64_t h = oh * w_.stride[0] - w_.padding[0] + std::int64_t{r} * w_.dilation[0];
      if (h < 0 || h >= p_.height) continue;
      const C* row = find(plane * p_.height + h);
      for (int c = 0; c < w_.kernel[1]; ++c, ++count) {
        values_[count] = row + places_[c];
        offsets_[count] = h * p_.width + std::int64_t{c} * w_.dilation[1] - w_.padding[1];
      }
    }
    return {count, values_, offsets_};
  }

 private:
  // From the first element of a window to the last.
  std::int64_t reach(std::size_t d) const { return std::int64_t{w_.dilation[d]} * (w_.kernel[d] - 1); }

  // A row of all planes. Those of a window have different places.
  const C* find(std::int64_t row) {
    const std::uint64_t place = static_cast<std::uint64_t>(row) & (held_rows_ - 1);
    C* const to = rows_ + static_cast<std::int64_t>(place) * phases_ * phase_;
    if (held_[place] == row) return to;
    held_[place] = row;
    const C* from = x_ + row * p_.width;
    std::int64_t done = 0;
    if (phases_ == 2 && w_.stride[1] == 2) {
      // Both at once: compilers make vector code of that.
      const std::int64_t first = w_.padding[1] % 2;
      const Range evens = parts_[first], odds = parts_[1 - first];
      C* even = to + first * phase_ + evens.begin;
      C* odd = to + (1 - first) * phase_ + odds.begin;
      done = std::min(evens.end - evens.begin, odds.end - odds.begin);
      LOCKSTEP_INDEPENDENT
      for (std::int64_t i = 0; i < done; ++i) {
        even[i] = from[2 * i];
        odd[i] = from[2 * i + 1];
      }
    }
    for (std::int64_t first = 0; first < phases_; ++first) {
      const auto [begin, end] = parts_[first];
      const std::int64_t stride = w_.stride[1], offset = first - w_.padding[1];
      C* phase = to + first * phase_;
      if (stride == 1)
        std::copy(from + (begin + offset), from + (end + offset), phase + begin);
      else
        for (std::int64_t i = begin + done; i < end; ++i) phase[i] = from[i * stride + offset];
    }
    return to;
  }

  const Planes& p_;
  const Window2d& w_;
  const C* x_;
  std::int64_t phases_, phase_;  // how many there are, and elements of one
  std::uint64_t held_rows_;
  std::int64_t* held_;    // which row stands in each place
  std::int64_t* places_;  // of the taps in a row
  Range* parts_;          // of the phases that are not padding
  const C** values_;
  std::int64_t* offsets_;
  C* rows_;
};

}  // namespace lockstep::kernels::host
