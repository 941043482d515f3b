// Many images are computed one after another, few of them in blocks of pixels, whose sums are added in the order of the
// blocks. Sums are in double.
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

// What belongs to the channels of an image.
struct Channels {
  double *first, *second;  // sums
  double* pivots;          // what is near the mean, or the mean
  float* factors;          // of each channel, then the next ones
};

std::int64_t padded(std::int64_t doubles) {  // threads do not write into each other's lines
  constexpr std::int64_t kLine = 64 / sizeof(double);
  return (doubles + kLine - 1) / kLine * kLine;
}

Channels take_channels(Scratch& scratch, const Images& s) {
  constexpr std::int64_t kMostFactors = 4;
  const std::int64_t channels = padded(s.channels());
  auto* const doubles = scratch.take<double>(3 * channels);
  return {doubles, doubles + channels, doubles + 2 * channels, scratch.take<float>(kMostFactors * channels)};
}

constexpr std::int64_t kManyImages = 16;

// Of each image: work.begin(image, channels), the sums of work.term(image, channels) over its pixels,
// work.finish(image, channels, piece), then work.write(image, channels, pixel, one behind the last). `images`: so many
// are a piece, where there are many of them; else all are piece 0. `reads`: tensors that the sums read.
template <class Work>
void for_images(const Images& s, std::int64_t images, std::int64_t reads, const Work& work) {
  if (s.batch >= kManyImages) {
    for_pieces(s.batch, images, [&](std::int64_t from, std::int64_t to) {
      Scratch scratch;
      const Channels channels = take_channels(scratch, s);
      work.begin_piece(from / images);
      for (std::int64_t image = from; image < to; ++image) {
        std::fill_n(channels.first, s.channels(), 0.0), std::fill_n(channels.second, s.channels(), 0.0);
        work.begin(image, channels);
        sum_rows(0, s.pixels, s.channels(), channels.first, channels.second, work.term(image, channels));
        work.finish(image, channels, from / images);
        work.write(image, channels, 0, s.pixels);
      }
    });
    return;
  }
  constexpr std::int64_t kLeastRows = 16;  // so that sums are few against what is summed up
  const std::int64_t row_bytes = std::max<std::int64_t>(reads * s.channels() * std::int64_t{sizeof(float)}, 1);
  const std::int64_t rows = std::max(kPieceBytes / row_bytes, kLeastRows);
  const std::int64_t blocks = (s.pixels + rows - 1) / rows, of_block = 2 * padded(s.channels());
  Scratch scratch;
  auto* const sums = scratch.take<double>(s.batch * blocks * of_block);
  auto* const all = scratch.take<Channels>(s.batch);
  for (std::int64_t image = 0; image < s.batch; ++image) all[image] = take_channels(scratch, s);
  const auto for_blocks = [&](const auto& f) {
    const std::int64_t bytes = std::min(rows, s.pixels) * row_bytes;
    for_pieces(s.batch * blocks, piece_rows(s.batch * blocks, bytes, kPieceBytes),
               [&](std::int64_t from, std::int64_t to) {
                 for (std::int64_t i = from; i < to; ++i)
                   f(i / blocks, i, i % blocks * rows, std::min((i % blocks + 1) * rows, s.pixels));
               });
  };
  for_pieces(s.batch, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t image = from; image < to; ++image) work.begin(image, all[image]);
  });
  for_blocks([&](std::int64_t image, std::int64_t block, std::int64_t from, std::int64_t to) {
    double* const first = sums + block * of_block;
    std::fill_n(first, of_block, 0.0);
    sum_rows(from, to, s.channels(), first, first + of_block / 2, work.term(image, all[image]));
  });
  work.begin_piece(0);
  for (std::int64_t image = 0; image < s.batch; ++image) {
    double* const total = sums + image * blocks * of_block;
    for (std::int64_t block = 1; block < blocks; ++block)
      for (std::int64_t i = 0; i < of_block; ++i) total[i] += total[block * of_block + i];
    all[image].first = total, all[image].second = total + of_block / 2;
    work.finish(image, all[image], 0);
  }
  for_blocks([&](std::int64_t image, std::int64_t, std::int64_t from, std::int64_t to) {
    work.write(image, all[image], from, to);
  });
}

struct Forward {
  const Images& s;
  const float *x, *weight, *bias;
  float *y, *mean, *inv_std;
  double eps;

  void begin_piece(std::int64_t) const {}
  // The mean of some of a group's elements, near which those of all are.
  void begin(std::int64_t n, const Channels& of) const {
    constexpr std::int64_t kElements = 16;
    const std::int64_t rows = std::min(s.pixels, (kElements + s.group_channels - 1) / s.group_channels);
    std::fill_n(of.pivots, s.channels(), 0.0);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < s.channels(); ++c)
        of.pivots[c] += static_cast<double>(x[n * s.image() + row * s.channels() + c]);
    for (std::int64_t begin = 0; begin < s.channels(); begin += s.group_channels) {
      double sum = 0;
      for (std::int64_t c = begin; c < begin + s.group_channels; ++c) sum += of.pivots[c];
      std::fill_n(of.pivots + begin, s.group_channels, sum / static_cast<double>(rows * s.group_channels));
    }
  }
  Distances<float> term(std::int64_t n, const Channels& of) const { return {x + n * s.image(), of.pivots}; }
  void finish(std::int64_t n, const Channels& of, std::int64_t) const {
    float* const centre = of.factors;
    float* const slope = centre + s.channels();
    float* const offset = slope + s.channels();
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const std::int64_t begin = g * s.group_channels, end = begin + s.group_channels;
      double distance = 0, square = 0;
      for (std::int64_t c = begin; c < end; ++c) distance += of.first[c], square += of.second[c];
      const double shift = distance / s.group_elements();
      const double average = of.pivots[begin] + shift, squares = square - distance * shift;
      const double inverse = 1 / std::sqrt((squares < 0 ? 0 : squares) / s.group_elements() + eps);
      if (mean) mean[n * s.groups + g] = static_cast<float>(average);
      if (inv_std) inv_std[n * s.groups + g] = static_cast<float>(inverse);
      for (std::int64_t c = begin; c < end; ++c) {
        centre[c] = static_cast<float>(average);
        slope[c] = static_cast<float>(inverse) * (weight ? weight[c] : 1.0F);
        offset[c] = bias ? bias[c] : 0.0F;
      }
    }
  }
  // The last rows come first: what has just been read lies in the cache.
  void write(std::int64_t n, const Channels& of, std::int64_t from, std::int64_t to) const {
    const std::int64_t channels = s.channels();
    const float* const centre = of.factors;
    const float* const slope = centre + channels;
    const float* const offset = slope + channels;
    for (std::int64_t pixel = to - 1; pixel >= from; --pixel) {
      const float* const in = x + n * s.image() + pixel * channels;
      float* const out = y + n * s.image() + pixel * channels;
      LOCKSTEP_INDEPENDENT
      for (std::int64_t c = 0; c < channels; ++c) out[c] = (in[c] - centre[c]) * slope[c] + offset[c];
    }
  }
};

// See backward in group_norm.cpp.
struct Backward {
  const Images& s;
  const float *dy, *x, *weight, *mean, *inv_std;
  float* dx;
  const PieceSums &of_weight, &of_bias;

  void begin_piece(std::int64_t piece) const {
    std::fill_n(of_weight.of(piece), s.channels(), 0.0), std::fill_n(of_bias.of(piece), s.channels(), 0.0);
  }
  void begin(std::int64_t n, const Channels& of) const {
    for (std::int64_t g = 0; g < s.groups; ++g)
      std::fill_n(of.pivots + g * s.group_channels, s.group_channels, static_cast<double>(mean[n * s.groups + g]));
  }
  GradientProducts<float, false> term(std::int64_t n, const Channels& of) const {
    return {.dy = dy + n * s.image(), .x = x + n * s.image(), .means = of.pivots, .y = {}, .edge = 0};
  }
  void finish(std::int64_t n, const Channels& of, std::int64_t piece) const {
    const std::int64_t channels = s.channels();
    float* const centre = of.factors;
    double* const weights = of_weight.of(piece);
    double* const biases = of_bias.of(piece);
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const std::int64_t from = g * s.group_channels, to = from + s.group_channels;
      const double inverse = static_cast<double>(inv_std[n * s.groups + g]);
      double sum = 0, product = 0;
      for (std::int64_t c = from; c < to; ++c) {
        const double w = weight ? static_cast<double>(weight[c]) : 1;
        sum += w * of.first[c];
        product += w * of.second[c];
        biases[c] += of.first[c];
        weights[c] += of.second[c] * inverse;
      }
      for (std::int64_t c = from; c < to; ++c) {
        centre[c] = mean[n * s.groups + g];
        centre[channels + c] = static_cast<float>(inverse) * (weight ? weight[c] : 1.0F);
        centre[2 * channels + c] = static_cast<float>(inverse * inverse * inverse * product / s.group_elements());
        centre[3 * channels + c] = static_cast<float>(inverse * sum / s.group_elements());
      }
    }
  }
  void write(std::int64_t n, const Channels& of, std::int64_t from, std::int64_t to) const {
    const std::int64_t channels = s.channels();
    const float* const centre = of.factors;
    const float* const factor = centre + channels;
    const float* const slope = factor + channels;
    const float* const offset = slope + channels;
    for (std::int64_t pixel = to - 1; pixel >= from; --pixel) {
      const std::int64_t at = n * s.image() + pixel * channels;
      LOCKSTEP_INDEPENDENT
      for (std::int64_t c = 0; c < channels; ++c)
        dx[at + c] = factor[c] * dy[at + c] - (x[at + c] - centre[c]) * slope[c] - offset[c];
    }
  }
};

}  // namespace

bool has_pixels(const View& x) {
  const Images s(x.shape);
  return s.image() > 0 && s.channels() > 1 && s.pixels > 1 && x.strides[3] == s.channels();
}

void group_norm_of_pixels(const GroupNormArgs& a) {
  const Images s(a.x.view.shape);
  const std::int64_t bytes = 2 * s.image() * std::int64_t{sizeof(float)};
  for_images(s, piece_rows(s.batch, bytes, kPieceBytes), 1,
             Forward{.s = s,
                     .x = elements(a.x),
                     .weight = elements(a.weight),
                     .bias = elements(a.bias),
                     .y = elements(a.y),
                     .mean = elements(a.mean),
                     .inv_std = elements(a.inv_std),
                     .eps = a.eps});
}

void group_norm_of_pixels(const GroupNormGradArgs& a) {
  const Images s(a.x.view.shape);
  const std::int64_t bytes = 3 * s.image() * std::int64_t{sizeof(float)};
  Scratch scratch;
  const std::int64_t divided = s.batch >= kManyImages ? s.batch : 1;
  const PieceSums of_weight(scratch, divided, bytes, s.channels()), of_bias(scratch, divided, bytes, s.channels());
  for_images(s, of_weight.rows(), 2,
             Backward{.s = s,
                      .dy = elements(a.dy),
                      .x = elements(a.x),
                      .weight = elements(a.weight),
                      .mean = elements(a.mean),
                      .inv_std = elements(a.inv_std),
                      .dx = elements(a.dx),
                      .of_weight = of_weight,
                      .of_bias = of_bias});
  if (float* const dweight = elements(a.dweight)) std::copy_n(of_weight.total(), s.channels(), dweight);
  if (float* const dbias = elements(a.dbias)) std::copy_n(of_bias.total(), s.channels(), dbias);
}

}  // namespace lockstep::kernels::host
