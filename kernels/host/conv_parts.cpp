#include "lockstep/kernels/host/conv_parts.h"

#include <bit>

#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {
namespace {

using Sizes = ConvSizes;

// In multiplications: a tenth of a millisecond or more. What is read and written costs as much as these many each.
constexpr std::int64_t kPartCost = std::int64_t{1} << 23;
constexpr std::int64_t kElementCost = 24;
// With fewer images than this, an image is divided too.
constexpr std::int64_t kManyParts = 16;
// Kernels compute several vectors of channels at once.
constexpr std::int64_t kVector = 16, kChannels = 2 * kVector;

// Gradients in place are divided by images alone. So many times fewer parts than are wanted are better than converting.
constexpr std::int64_t kFewer = 4;

std::int64_t image_elements(const Sizes& s) { return s.channels * s.plane() + s.outputs * s.out_plane(); }
std::int64_t image_cost(const Sizes& s) {
  return s.outputs * s.out_plane() * s.taps() + kElementCost * image_elements(s);
}

ConvPart take_images(const Sizes& s, std::int64_t begin, std::int64_t end) {
  ConvPart part{s, begin * s.channels * s.plane(), 0, 0, begin * s.outputs * s.out_plane()};
  part.sizes.batch = end - begin;
  return part;
}

// The functions below take a part of `part`, whose tensors have the strides of `s`.
void take_groups(const Sizes& s, std::int64_t begin, std::int64_t end, ConvPart& part) {
  part.x += begin * s.group_channels * s.channel_step();
  part.w += begin * s.group_outputs * s.taps();
  part.bias += begin * s.group_outputs;
  part.y += begin * s.group_outputs * s.out_channel_step();
  part.sizes.groups = end - begin;
  part.sizes.channels = (end - begin) * s.group_channels;
  part.sizes.outputs = (end - begin) * s.group_outputs;
}

void take_outputs(const Sizes& s, std::int64_t begin, std::int64_t end, ConvPart& part) {
  part.w += begin * s.taps();
  part.bias += begin;
  part.y += begin * s.out_channel_step();
  part.sizes.outputs = part.sizes.group_outputs = end - begin;
}

void take_channels(const Sizes& s, std::int64_t begin, std::int64_t end, ConvPart& part) {
  part.x += begin * s.channel_step();
  part.w += begin * (s.weights_channels_last ? 1 : s.kernel());
  part.sizes.channels = part.sizes.group_channels = end - begin;
}

// Rows of y, with the rows of x that their windows reach.
void take_rows(const Sizes& s, std::int64_t begin, std::int64_t end, ConvPart& part) {
  const Window2d& w = s.window;
  const std::int64_t reach = std::int64_t{w.dilation[0]} * (w.kernel[0] - 1);
  const std::int64_t first = begin * w.stride[0] - w.padding[0], last = (end - 1) * w.stride[0] - w.padding[0] + reach;
  const std::int64_t low = std::max<std::int64_t>(first, 0), high = std::min(last, s.height - 1);
  part.x += low * s.row_step();
  part.y += begin * s.out_row_step();
  part.sizes.height = high + 1 - low;
  part.sizes.out_height = end - begin;
  part.sizes.window.padding[0] = static_cast<int>(low - first);
}
// Neighbours read the rows between them both: few against their own.
std::int64_t least_rows(const Sizes& s) {
  return std::max(4, 4 * s.window.dilation[0] * (s.window.kernel[0] - 1) / s.window.stride[0]);
}
// Every row's window reaches x.
bool has_rows(const Sizes& s) {
  return s.window.padding[0] <= std::int64_t{s.window.dilation[0]} * (s.window.kernel[0] - 1);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How many of `count` a part has, a multiple of `block`, for up to `wanted` parts.
std::int64_t share(std::int64_t count, std::int64_t wanted, std::int64_t block) {
  return ceil_div(ceil_div(count, wanted), block) * block;
}

}  // namespace

bool conv_in_place(const ConvSizes& s) {
  return s.channels_last && s.outputs * s.taps() <= s.batch * image_elements(s);
}

std::vector<ConvPart> conv_parts(ConvKind kind, const ConvSizes& s) {
  const std::int64_t weights = s.outputs * s.taps();
  const std::int64_t cost = s.batch * image_cost(s) + kElementCost * weights;
  if (cost < 2 * kPartCost) return {{s}};
  const std::int64_t wanted = std::min(kManyParts, cost / kPartCost);

  std::vector<ConvPart> parts;
  // Parts of `images` each, and of `each` of `count` of what `take` takes.
  const auto divide = [&](std::int64_t images, std::int64_t count, std::int64_t each, auto&& take) {
    for (std::int64_t n = 0; n < s.batch; n += images)
      for (std::int64_t i = 0; i < count; i += each) {
        parts.push_back(take_images(s, n, std::min(n + images, s.batch)));
        if (kind == ConvKind::grad_weight) parts.back().sum = n / images;
        if (each < count) take(s, i, std::min(i + each, count), parts.back());
      }
  };
  const std::int64_t group_block = s.group_outputs < kVector ? kVector : 1;
  if (kind == ConvKind::grad_weight) {
    const bool grouped = s.groups > 1;
    const std::int64_t count = grouped ? s.groups : s.outputs;
    const std::int64_t each = share(count, wanted, grouped ? group_block : kChannels);
    // Sums over images apart, where to add them up costs little.
    const std::int64_t affordable = cost / (64 * kElementCost * weights);
    const std::int64_t sums = std::clamp<std::int64_t>(affordable, 1, std::min(wanted, s.batch));
    if (sums >= ceil_div(count, each) || (conv_in_place(s) && sums * kFewer >= wanted))
      divide(ceil_div(s.batch, sums), 1, 1, take_outputs);
    else
      divide(s.batch, count, each, grouped ? take_groups : take_outputs);
    return parts;
  }
  // A power of two: most batches are one too, and have parts of one size, with one primitive.
  const auto images = static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(piece_rows(s.batch, image_cost(s), kPartCost))));
  const std::int64_t by_images = ceil_div(s.batch, images);
  const bool forward = kind == ConvKind::forward, in_place = conv_in_place(s);
  // Into how many parts those of images are divided further. Parts that are computed in place have all channels of
  // their pixels, and no gaps: of several images, all rows.
  const bool whole_images = in_place && (images > 1 || (!forward && by_images * kFewer >= wanted));
  const std::int64_t more = whole_images ? 1 : std::min(ceil_div(kManyParts, by_images), wanted);
  if (s.groups > 1 && !(in_place && forward))
    divide(images, s.groups, share(s.groups, more, group_block), take_groups);
  else if (forward && s.channels < 8 && !in_place)
    // oneDNN has so few as they are, but not as part of the rows.
    divide(images, s.outputs, share(s.outputs, more, kChannels), take_outputs);
  else if (weights > s.batch * image_elements(s) || (!forward && by_images < 4 && !whole_images))
    // What all have in common is the images. The weights, which each uses a part of, are the more to convert.
    divide(s.batch, forward ? s.outputs : s.channels, share(forward ? s.outputs : s.channels, wanted, kChannels),
           forward ? take_outputs : take_channels);
  else
    divide(images, s.out_height,
           forward && !whole_images && has_rows(s) ? share(s.out_height, more, least_rows(s)) : s.out_height,
           take_rows);
  return parts;
}

}  // namespace lockstep::kernels::host
