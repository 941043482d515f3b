// Pictures of circles, squares and triangles, drawn by number: what detect_shapes learns to find.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "lockstep/parallel/openmmlab/openmmlab.h"

namespace example {

// Of a pixel. What lies between the shapes is class 0.
inline constexpr int kShapeClasses = 4;
inline constexpr std::array<const char*, kShapeClasses> kShapeNames{"background", "circle", "square", "triangle"};

struct Outline {
  int label = 1;
  double row = 0, column = 0;  // of the centre
  double radius = 1;           // of the circle, or of the one around the corners
  double angle = 0;

  bool contains(double at_row, double at_column) const {
    const double x = at_column - column, y = at_row - row;
    if (label == 1) return x * x + y * y < radius * radius;
    const int corners = label == 2 ? 4 : 3;
    const double inner = radius * std::cos(std::numbers::pi / corners);  // from the centre to an edge
    for (int edge = 0; edge < corners; ++edge) {
      const double normal = angle + 2 * std::numbers::pi * edge / corners;
      if (x * std::cos(normal) + y * std::sin(normal) > inner) return false;
    }
    return true;
  }
};

// A picture and the class of each of its pixels. Their sizes differ from picture to picture.
struct Drawing {
  lockstep::Tensor image;   // f32 [3, height, width], about -1 to 1
  lockstep::Tensor labels;  // i64 [height, width]
};

// Drawing `number` of the collection `seed`: the same pixels in every run, whoever asks.
inline Drawing draw(std::uint64_t seed, std::int64_t number) {
  lockstep::RandomEngine random(seed, static_cast<std::uint64_t>(number));
  const auto between = [&](double low, double high) { return low + (high - low) * random.uniform(); };
  const auto height = static_cast<std::int64_t>(32 + 8 * random.below(3));
  const auto width = static_cast<std::int64_t>(32 + 8 * random.below(3));

  std::vector<Outline> outlines;
  const std::size_t wanted = 1 + random.below(3);
  for (int tries = 0; tries < 30 && outlines.size() < wanted; ++tries) {
    Outline next{static_cast<int>(1 + random.below(3)), 0, 0, between(7, 10), between(-0.2, 0.2)};
    if (next.label > 1) next.radius *= 1.2;  // about as large as a circle
    next.row = between(next.radius, static_cast<double>(height) - next.radius);
    next.column = between(next.radius, static_cast<double>(width) - next.radius);
    const bool free = std::all_of(outlines.begin(), outlines.end(), [&](const Outline& other) {
      return std::hypot(other.row - next.row, other.column - next.column) > other.radius + next.radius + 2;
    });
    if (free) outlines.push_back(next);
  }

  // Colours say nothing about a shape, but that it is brighter than the ground.
  using Colour = std::array<double, 3>;
  const auto any_colour = [&](double low, double high) {
    return Colour{between(low, high), between(low, high), between(low, high)};
  };
  const Colour ground = any_colour(-0.9, -0.1), slope_down = any_colour(-1, 1), slope_right = any_colour(-1, 1);
  std::vector<Colour> colours;
  for (std::size_t i = 0; i < outlines.size(); ++i) colours.push_back(any_colour(0.1, 0.9));
  std::vector<float> image(static_cast<std::size_t>(3 * height * width));
  std::vector<std::int64_t> labels(static_cast<std::size_t>(height * width), 0);
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x) {
      const auto at = static_cast<std::size_t>(y * width + x);
      const double down = static_cast<double>(y) / static_cast<double>(height) - 0.5;
      const double right = static_cast<double>(x) / static_cast<double>(width) - 0.5;
      Colour colour;
      for (std::size_t c = 0; c < 3; ++c) colour[c] = ground[c] + 0.3 * (slope_down[c] * down + slope_right[c] * right);
      for (std::size_t i = 0; i < outlines.size(); ++i)
        if (outlines[i].contains(static_cast<double>(y) + 0.5, static_cast<double>(x) + 0.5))
          colour = colours[i], labels[at] = outlines[i].label;
      for (std::size_t c = 0; c < 3; ++c)
        image[c * static_cast<std::size_t>(height * width) + at] =
            static_cast<float>(colour[c] + 0.15 * (between(-1, 1) + between(-1, 1)));
    }
  return {lockstep::from_data(image, {3, height, width}), lockstep::from_data(labels, {height, width})};
}

// As a loader hands it over: images padded to one size and stacked, truths as a list of their own sizes, and what the
// images' sizes are.
struct ShapeSample {
  lockstep::DataContainer<lockstep::Tensor> image, truth;
  lockstep::DataContainer<lockstep::ImageMeta> meta;
  void fields(auto& f) { f(image, truth, meta); }
};

// Drawings from `first` on. For training some are mirrored, which the loader's seed and the epoch decide.
struct Shapes {
  std::uint64_t seed;
  std::int64_t first, count;
  bool mirrors = false;

  std::int64_t size() const { return count; }
  ShapeSample get(std::int64_t index) const {
    Drawing drawing = draw(seed, first + index);
    if (mirrors && lockstep::RandomEngine::from_thread().below(2) == 1) {
      drawing.image = lockstep::flip(drawing.image, {2});
      drawing.labels = lockstep::flip(drawing.labels, {1});
    }
    lockstep::ImageMeta meta{.img_id = first + index};
    meta.img_shape = {drawing.labels.size(0), drawing.labels.size(1)};
    return {lockstep::DataContainer(drawing.image, {.stack = true}), lockstep::DataContainer(drawing.labels),
            lockstep::DataContainer(meta, {.cpu_only = true})};
  }
};

}  // namespace example
