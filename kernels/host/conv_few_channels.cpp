// An element of the gradient is the sum of products of a plane of dy and a shifted plane of x. Vectors are along rows;
// several elements at once, so that their sums stay in registers and are as many as the multipliers keep busy.
#include "lockstep/kernels/host/conv_few_channels.h"

#include <array>
#include <utility>
#include <vector>

#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {
namespace {

constexpr std::int64_t kPieceMultiplications = std::int64_t{1} << 19;

// A plane of x with its padding written out. Elements that lie a stride apart are next to each other: what a tap of the
// window reads for a row of dy is a row too.
class PaddedPlane {
 public:
  PaddedPlane(const ConvSizes& s, Scratch& scratch)
      : s_(s),
        row_(s.out_width + (std::int64_t{s.window.kernel[1]} - 1) * s.window.dilation[1] / s.window.stride[1]),
        rows_((s.out_height - 1) * s.window.stride[0] + (std::int64_t{s.window.kernel[0]} - 1) * s.window.dilation[0] +
              1),
        data_(scratch.take<float>(elements())) {
    std::fill_n(data_, elements(), 0.0f);
  }
  void fill(const float* x) {
    const Window2d& w = s_.window;
    const std::int64_t stride = w.stride[1], end = std::min(s_.height, rows_ - w.padding[0]);
    for (std::int64_t first = 0; first < stride; ++first) {
      const std::int64_t offset = first - w.padding[1];
      const Range columns = inside(offset, stride, s_.width, row_);
      for (std::int64_t h = 0; h < end; ++h) {
        const float* from = x + h * s_.width + offset;
        float* to = data_ + (first * rows_ + h + w.padding[0]) * row_;
        for (std::int64_t i = columns.begin; i < columns.end; ++i) to[i] = from[i * stride];
      }
    }
  }
  // What row 0 of dy meets at a tap, and how far what the next one meets is from there.
  const float* tap(std::int64_t r, std::int64_t c) const {
    const Window2d& w = s_.window;
    const std::int64_t at = c * w.dilation[1];
    return data_ + (at % w.stride[1] * rows_ + r * w.dilation[0]) * row_ + at / w.stride[1];
  }
  std::int64_t step() const { return s_.window.stride[0] * row_; }

 private:
  std::int64_t elements() const { return s_.window.stride[1] * rows_ * row_; }

  const ConvSizes& s_;
  std::int64_t row_, rows_;
  float* data_;
};

// A row of a filter: its elements are products of one plane of dy with neighbours.
struct FilterRow {
  const float* dy;
  const PaddedPlane* x;
  std::int64_t row;
  float* dw;
};

Vector<float> add_product(const Vector<float>& a, const Vector<float>& b, const Vector<float>& sum) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, sum);
#else
  return a * b + sum;
#endif
}

float sum_lanes(const Vector<float>& v) {
  float lanes[kWidth<float>];
  store<float>(v, lanes);
  for (int width = kWidth<float> / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// A part of several filter rows: `rows` of them from `rows` on, and of each `taps` elements from `tap` on.
struct Tile {
  const FilterRow* first;
  std::int64_t rows, tap, taps;
};

// Adds to the elements of a tile. Those that it lacks of kRows x kTaps are computed twice: code for each size would be
// large, and no faster, as that of fewer sums waits for the last additions.
template <int kRows, int kTaps>
[[gnu::noinline]] void add_products(const ConvSizes& s, const Tile& tile) {
  const float *dy[std::size_t{kRows}], *x[std::size_t{kRows}][std::size_t{kTaps}];
  for (int r = 0; r < kRows; ++r) {
    const FilterRow& row = tile.first[std::min<std::int64_t>(r, tile.rows - 1)];
    dy[r] = row.dy;
    for (int t = 0; t < kTaps; ++t) x[r][t] = row.x->tap(row.row, tile.tap + std::min<std::int64_t>(t, tile.taps - 1));
  }
  const std::int64_t whole = s.out_width / kWidth<float> * kWidth<float>, rest = s.out_width - whole;
  const std::int64_t step = tile.first->x->step();
  // Unrolled by hand: the accumulators must be registers, and registers have no index.
  const auto for_sums = [](auto&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) {
      (f(std::integral_constant<int, I / kTaps>{}, std::integral_constant<int, I % kTaps>{}), ...);
    }
    (std::make_integer_sequence<int, kRows * kTaps>{});
  };
  Vector<float> sums[std::size_t{kRows}][std::size_t{kTaps}] = {};
  for (std::int64_t oh = 0; oh < s.out_height; ++oh) {
    const std::int64_t at_dy = oh * s.out_width, at_x = oh * step;
    for (std::int64_t i = 0; i < whole; i += kWidth<float>)
      for_sums([&](auto r, auto t) {
        sums[r][t] = add_product(load(dy[r] + at_dy + i), load(x[r][t] + at_x + i), sums[r][t]);
      });
    if (rest > 0)
      for_sums([&](auto r, auto t) {
        sums[r][t] =
            add_product(load_first(dy[r] + at_dy + whole, rest), load_first(x[r][t] + at_x + whole, rest), sums[r][t]);
      });
  }
  for (std::int64_t r = 0; r < tile.rows; ++r)
    for (std::int64_t t = 0; t < tile.taps; ++t) tile.first[r].dw[tile.tap + t] += sum_lanes(sums[r][t]);
}

// Calls f(begin, count) for nearly equal parts of at most `most`.
template <class F>
void for_parts_of(std::int64_t all, std::int64_t most, F&& f) {
  const std::int64_t parts = (all + most - 1) / most;
  for (std::int64_t i = 0; i < parts; ++i) f(all * i / parts, all * (i + 1) / parts - all * i / parts);
}

void add_group(const ConvSizes& s, const FilterRow* filter_rows, std::int64_t count) {
  for_parts_of(count, 4, [&](std::int64_t row, std::int64_t rows) {
    for_parts_of(s.window.kernel[1], 3, [&](std::int64_t tap, std::int64_t taps) {
      const Tile tile{filter_rows + row, rows, tap, taps};
      if (rows == 4)
        taps == 3 ? add_products<4, 3>(s, tile) : add_products<4, 2>(s, tile);
      else
        taps == 3 ? add_products<3, 3>(s, tile) : add_products<3, 2>(s, tile);
    });
  });
}

}  // namespace

bool few_channels_grad_weight(const ConvSizes& s, const float* dy, const float* x, float* dw) {
  // Measured: of more channels blocks of vectors are faster, and so is oneDNN's own code for small depthwise windows.
  if (s.groups == 1 || s.group_channels > 4 || s.group_outputs > 4) return false;
  const Window2d& w = s.window;
  const bool small = w.kernel[0] <= 3 && w.kernel[1] <= 3 && w.dilation == std::array{1, 1};
  if (small && s.group_channels == 1 && s.group_outputs == 1) return false;
  const std::int64_t height = w.kernel[0], filter = s.taps();
  const std::int64_t count = s.group_outputs * s.group_channels * height;
  const std::int64_t cost = s.batch * s.group_outputs * filter * s.out_plane();
  for_pieces(s.groups, piece_rows(s.groups, cost, kPieceMultiplications), [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch;
    std::fill(dw + begin * s.group_outputs * filter, dw + end * s.group_outputs * filter, 0.0f);
    std::vector<PaddedPlane> planes;
    for (std::int64_t c = 0; c < s.group_channels; ++c) planes.emplace_back(s, scratch);
    auto* rows = scratch.take<FilterRow>(count);
    for (std::int64_t g = begin; g < end; ++g)
      for (std::int64_t n = 0; n < s.batch; ++n) {
        FilterRow* row = rows;
        for (std::int64_t c = 0; c < s.group_channels; ++c)
          planes[static_cast<std::size_t>(c)].fill(x + (n * s.channels + g * s.group_channels + c) * s.plane());
        for (std::int64_t o = g * s.group_outputs; o < (g + 1) * s.group_outputs; ++o)
          for (std::int64_t c = 0; c < s.group_channels; ++c)
            for (std::int64_t r = 0; r < height; ++r)
              *row++ = {dy + (n * s.outputs + o) * s.out_plane(), &planes[static_cast<std::size_t>(c)], r,
                        dw + o * filter + (c * height + r) * w.kernel[1]};
        add_group(s, rows, count);
      }
  });
  return true;
}

}  // namespace lockstep::kernels::host
