// Each image is divided into blocks of pixels, whose sums are in double and are added in the order of the blocks.
#include "lockstep/kernels/host/image_group_norm.h"

#include <algorithm>
#include <cmath>

#include "lockstep/kernels/host/channel_terms.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {
namespace {

struct Images {
  std::int64_t batch, groups, group_channels, pixels;
  explicit Images(const Shape& x) : batch(x[0]), groups(x[1]), group_channels(x[2]), pixels(x[3]) {}
  std::int64_t channels() const { return groups * group_channels; }
  std::int64_t image() const { return pixels * channels(); }
  double group_elements() const { return static_cast<double>(group_channels * pixels); }
};

const float* elements(const In& use) { return static_cast<const float*>(use.view.data); }
float* elements(const Out& use) { return static_cast<float*>(use.view.data); }

// The blocks of images, and two sums for each of their channels.
class Blocks {
 public:
  // `reads`: elements of how many images a block reads.
  Blocks(Scratch& scratch, const Images& s, std::int64_t reads)
      : s_(s),
        rows_(block_rows(s, reads)),
        blocks_((s.pixels + rows_ - 1) / rows_),
        sums_(scratch.take<double>(2 * s.batch * blocks_ * s.channels())) {}

  // Of channels, over the whole image once it is finished.
  double* first(std::int64_t image, std::int64_t block = 0) const {
    return sums_ + 2 * (image * blocks_ + block) * s_.channels();
  }
  double* second(std::int64_t image, std::int64_t block = 0) const { return first(image, block) + s_.channels(); }

  // begin(image), the sums of term(image) over its pixels, finish(image), then write(image, pixel, one behind the
  // last): where there are many images, all of it for one after another, whose pixels the cache may have when they are
  // written. `reads`: as above.
  template <class Begin, class TermOf, class Finish, class Write>
  void run(std::int64_t reads, const Begin& begin, const TermOf& term, const Finish& finish, const Write& write) const {
    constexpr std::int64_t kManyImages = 16;
    const std::int64_t bytes = (reads + 1) * s_.image() * std::int64_t{sizeof(float)};
    const auto sum = [&](std::int64_t image, std::int64_t block) {
      std::fill_n(first(image, block), 2 * s_.channels(), 0.0);
      sum_rows(block * rows_, std::min((block + 1) * rows_, s_.pixels), s_.channels(), first(image, block),
               second(image, block), term(image));
    };
    const auto finish_sums = [&](std::int64_t image) {
      double* const total = first(image);
      for (std::int64_t block = 1; block < blocks_; ++block)
        for (std::int64_t i = 0; i < 2 * s_.channels(); ++i) total[i] += first(image, block)[i];
      finish(image);
    };
    const auto write_block = [&](std::int64_t image, std::int64_t block) {
      write(image, block * rows_, std::min((block + 1) * rows_, s_.pixels));
    };
    if (s_.batch >= kManyImages) {
      for_pieces(s_.batch, piece_rows(s_.batch, bytes, kPieceBytes), [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t image = from; image < to; ++image) {
          begin(image);
          for (std::int64_t block = 0; block < blocks_; ++block) sum(image, block);
          finish_sums(image);
          for (std::int64_t block = blocks_ - 1; block >= 0; --block) write_block(image, block);
        }
      });
      return;
    }
    const auto for_blocks = [&](const auto& f) {
      for_pieces(s_.batch * blocks_, 1, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i) f(i / blocks_, i % blocks_);
      });
    };
    for (std::int64_t image = 0; image < s_.batch; ++image) begin(image);
    for_blocks(sum);
    for (std::int64_t image = 0; image < s_.batch; ++image) finish_sums(image);
    for_blocks(write_block);
  }

 private:
  static std::int64_t block_rows(const Images& s, std::int64_t reads) {
    constexpr std::int64_t kLeastRows = 16;  // so that sums are few against what is summed up
    const std::int64_t row_bytes = reads * s.channels() * std::int64_t{sizeof(float)};
    return std::max(kPieceBytes / std::max<std::int64_t>(row_bytes, 1), kLeastRows);
  }

  const Images& s_;
  std::int64_t rows_, blocks_;
  double* sums_;
};

// The mean of some of a group's elements, near which those of all are.
void find_pivots(const Images& s, const float* image, double* pivots) {
  constexpr std::int64_t kElements = 64;
  const std::int64_t rows = std::min(s.pixels, (kElements + s.group_channels - 1) / s.group_channels);
  for (std::int64_t g = 0; g < s.groups; ++g) {
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < s.group_channels; ++c)
        sum += static_cast<double>(image[row * s.channels() + g * s.group_channels + c]);
    std::fill_n(pivots + g * s.group_channels, s.group_channels, sum / static_cast<double>(rows * s.group_channels));
  }
}

}  // namespace

bool has_pixels(const View& x) {
  const Images s(x.shape);
  return s.image() > 0 && s.channels() > 1 && s.pixels > 1 && x.strides[3] == s.channels();
}

void group_norm_of_pixels(const GroupNormArgs& a) {
  const Images s(a.x.view.shape);
  const std::int64_t channels = s.channels();
  const float* const x = elements(a.x);
  const float* const weight = elements(a.weight);
  const float* const bias = elements(a.bias);
  float* const y = elements(a.y);
  Scratch scratch;
  const Blocks blocks(scratch, s, 1);
  auto* const pivots = scratch.take<double>(s.batch * channels);
  auto* const factors = scratch.take<float>(3 * s.batch * channels);  // centre, slope and offset of each channel
  blocks.run(
      1, [&](std::int64_t n) { find_pivots(s, x + n * s.image(), pivots + n * channels); },
      [&](std::int64_t n) {
        return Distances<float>{x + n * s.image(), pivots + n * channels};
      },
      [&](std::int64_t n) {
        float* const centre = factors + 3 * n * channels;
        for (std::int64_t g = 0; g < s.groups; ++g) {
          const std::int64_t begin = g * s.group_channels, end = begin + s.group_channels;
          double distance = 0, square = 0;
          for (std::int64_t c = begin; c < end; ++c) distance += blocks.first(n)[c], square += blocks.second(n)[c];
          const double shift = distance / s.group_elements();
          const double average = pivots[n * channels + begin] + shift, squares = square - distance * shift;
          const double inverse = 1 / std::sqrt((squares < 0 ? 0 : squares) / s.group_elements() + a.eps);
          if (float* const mean = elements(a.mean)) mean[n * s.groups + g] = static_cast<float>(average);
          if (float* const inv_std = elements(a.inv_std)) inv_std[n * s.groups + g] = static_cast<float>(inverse);
          for (std::int64_t c = begin; c < end; ++c) {
            centre[c] = static_cast<float>(average);
            centre[channels + c] = static_cast<float>(inverse) * (weight ? weight[c] : 1.0F);
            centre[2 * channels + c] = bias ? bias[c] : 0.0F;
          }
        }
      },
      [&](std::int64_t n, std::int64_t from, std::int64_t to) {
        const float* const centre = factors + 3 * n * channels;
        const float* const slope = centre + channels;
        const float* const offset = slope + channels;
        for (std::int64_t pixel = to - 1; pixel >= from; --pixel) {
          const float* const in = x + n * s.image() + pixel * channels;
          float* const out = y + n * s.image() + pixel * channels;
          LOCKSTEP_INDEPENDENT
          for (std::int64_t c = 0; c < channels; ++c) out[c] = (in[c] - centre[c]) * slope[c] + offset[c];
        }
      });
}

// See backward in group_norm.cpp.
void group_norm_of_pixels(const GroupNormGradArgs& a) {
  const Images s(a.x.view.shape);
  const std::int64_t channels = s.channels();
  const float* const dy = elements(a.dy);
  const float* const x = elements(a.x);
  const float* const weight = elements(a.weight);
  const float* const mean = elements(a.mean);
  const float* const inv_std = elements(a.inv_std);
  float* const dx = elements(a.dx);
  Scratch scratch;
  const Blocks blocks(scratch, s, 2);
  auto* const means = scratch.take<double>(s.batch * channels);
  auto* const factors = scratch.take<float>(4 * s.batch * channels);  // of each channel: centre, factor, slope, offset
  const auto begin = [&](std::int64_t n) {
    for (std::int64_t c = 0; c < channels; ++c)
      means[n * channels + c] = static_cast<double>(mean[n * s.groups + c / s.group_channels]);
  };
  const auto term = [&](std::int64_t n) {
    return GradientProducts<float, false>{
        .dy = dy + n * s.image(), .x = x + n * s.image(), .means = means + n * channels, .y = {}, .edge = 0};
  };
  const auto finish = [&](std::int64_t n) {
    float* const centre = factors + 4 * n * channels;
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const std::int64_t from = g * s.group_channels, to = from + s.group_channels;
      const double inverse = static_cast<double>(inv_std[n * s.groups + g]);
      double sum = 0, product = 0;
      for (std::int64_t c = from; c < to; ++c) {
        const double w = weight ? static_cast<double>(weight[c]) : 1;
        sum += w * blocks.first(n)[c];
        product += w * blocks.second(n)[c];
        blocks.second(n)[c] *= inverse;  // what dweight adds up
      }
      for (std::int64_t c = from; c < to; ++c) {
        centre[c] = mean[n * s.groups + g];
        centre[channels + c] = static_cast<float>(inverse) * (weight ? weight[c] : 1.0F);
        centre[2 * channels + c] = static_cast<float>(inverse * inverse * inverse * product / s.group_elements());
        centre[3 * channels + c] = static_cast<float>(inverse * sum / s.group_elements());
      }
    }
  };
  const auto write = [&](std::int64_t n, std::int64_t from, std::int64_t to) {
    const float* const centre = factors + 4 * n * channels;
    const float* const factor = centre + channels;
    const float* const slope = factor + channels;
    const float* const offset = slope + channels;
    for (std::int64_t pixel = to - 1; pixel >= from; --pixel) {
      const std::int64_t at = n * s.image() + pixel * channels;
      LOCKSTEP_INDEPENDENT
      for (std::int64_t c = 0; c < channels; ++c)
        dx[at + c] = factor[c] * dy[at + c] - (x[at + c] - centre[c]) * slope[c] - offset[c];
    }
  };
  blocks.run(2, begin, term, finish, write);
  for (const bool of_weight : {false, true}) {
    float* const to = elements(of_weight ? a.dweight : a.dbias);
    if (!to) continue;
    for (std::int64_t c = 0; c < channels; ++c) {
      double total = 0;
      for (std::int64_t n = 0; n < s.batch; ++n) total += (of_weight ? blocks.second(n) : blocks.first(n))[c];
      to[c] = static_cast<float>(total);
    }
  }
}

}  // namespace lockstep::kernels::host
