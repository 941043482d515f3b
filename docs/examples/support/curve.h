// The losses of a training as a PNG file.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "picture.h"

namespace example {

// From 0 to the largest, from the first to the last; a column of pixels spans the losses that it stands for. What is no
// number is left out.
inline Picture curve(const std::vector<double>& losses) {
  constexpr int kWidth = 480, kHeight = 240, kMargin = 24;
  constexpr Rgb kAxis{120, 120, 120}, kLine{80, 140, 255};
  Picture picture(kWidth, kHeight, {255, 255, 255});
  picture.write(kMargin, 6, "LOSS", 2, kAxis);
  picture.fill(kMargin - 1, kMargin, 1, kHeight - 2 * kMargin, kAxis);
  picture.fill(kMargin - 1, kHeight - kMargin, kWidth - 2 * kMargin, 1, kAxis);
  double most = 0;
  for (const double loss : losses)
    if (std::isfinite(loss)) most = std::max(most, loss);
  if (most == 0) return picture;
  const int columns = kWidth - 2 * kMargin, rows = kHeight - 2 * kMargin;
  const auto y_of = [&](double loss) { return kHeight - kMargin - static_cast<int>(loss / most * (rows - 1)) - 1; };
  const auto count = static_cast<std::int64_t>(losses.size());
  for (int x = 0; x < columns; ++x) {
    const std::int64_t from = x * count / columns, to = std::max(from + 1, (x + 1) * count / columns);
    double low = HUGE_VAL, high = -HUGE_VAL;
    for (std::int64_t i = from; i < to; ++i) {
      const double loss = losses[static_cast<std::size_t>(i)];
      if (std::isfinite(loss)) low = std::min(low, loss), high = std::max(high, loss);
    }
    if (low <= high) picture.fill(kMargin + x, y_of(high), 1, y_of(low) - y_of(high) + 2, kLine);
  }
  return picture;
}

}  // namespace example
