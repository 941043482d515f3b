// A sheet of images with what is true and what was found, as a PNG file.
#pragma once

#include <png.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shapes.h"

namespace example {

using Rgb = std::array<std::uint8_t, 3>;
inline constexpr std::array<Rgb, kShapeClasses> kShapeColours{
    {{0, 0, 0}, {255, 60, 60}, {60, 220, 60}, {80, 140, 255}}};

class Picture {
 public:
  Picture(int width, int height, Rgb ground) : width_(width), height_(height) {
    for (int i = 0; i < width * height; ++i) bytes_.insert(bytes_.end(), ground.begin(), ground.end());
  }
  int width() const { return width_; }
  int height() const { return height_; }

  void fill(int left, int top, int columns, int rows, Rgb colour) {
    for (int y = std::max(0, top); y < std::min(height_, top + rows); ++y)
      for (int x = std::max(0, left); x < std::min(width_, left + columns); ++x)
        std::copy(colour.begin(), colour.end(), bytes_.begin() + 3 * (y * width_ + x));
  }

  // Capitals and spaces, 5 x 7 squares of `dot` pixels each.
  void write(int left, int top, std::string_view text, int dot, Rgb colour) {
    for (const char c : text) {
      for (const auto& [letter, rows] : kLetters)
        for (int y = 0; letter == c && y < 7; ++y)
          for (int x = 0; x < 5; ++x)
            if (rows[static_cast<std::size_t>(y)] >> (4 - x) & 1) fill(left + x * dot, top + y * dot, dot, dot, colour);
      left += 6 * dot;
    }
  }

  // The file appears complete or not at all. Throws lockstep::Error where it cannot be written.
  void save(const std::string& path) const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = static_cast<png_uint_32>(width_);
    image.height = static_cast<png_uint_32>(height_);
    image.format = PNG_FORMAT_RGB;
    const std::string fresh = path + ".new";
    if (!png_image_write_to_file(&image, fresh.c_str(), 0, bytes_.data(), 0, nullptr) ||
        std::rename(fresh.c_str(), path.c_str()) != 0) {
      std::remove(fresh.c_str());
      throw lockstep::Error(lockstep::cat("expected to write '", path, "', got the error '",
                                          image.message[0] ? image.message : std::strerror(errno), "'"));
    }
  }

 private:
  using Rows = std::array<std::uint8_t, 7>;
  static constexpr std::array<std::pair<char, Rows>, 17> kLetters{{
      {'A', {14, 17, 17, 31, 17, 17, 17}},
      {'C', {14, 17, 16, 16, 16, 17, 14}},
      {'D', {30, 17, 17, 17, 17, 17, 30}},
      {'E', {31, 16, 16, 30, 16, 16, 31}},
      {'F', {31, 16, 16, 30, 16, 16, 16}},
      {'G', {14, 17, 16, 23, 17, 17, 15}},
      {'H', {17, 17, 17, 31, 17, 17, 17}},
      {'I', {14, 4, 4, 4, 4, 4, 14}},
      {'L', {16, 16, 16, 16, 16, 16, 31}},
      {'M', {17, 27, 21, 21, 17, 17, 17}},
      {'N', {17, 25, 21, 19, 17, 17, 17}},
      {'O', {14, 17, 17, 17, 17, 17, 14}},
      {'Q', {14, 17, 17, 17, 21, 18, 13}},
      {'R', {30, 17, 17, 30, 20, 18, 17}},
      {'S', {15, 16, 16, 14, 1, 1, 30}},
      {'T', {31, 4, 4, 4, 4, 4, 4}},
      {'U', {17, 17, 17, 17, 17, 17, 14}},
  }};

  int width_, height_;
  std::vector<std::uint8_t> bytes_;
};

// An image, its truth and what was found in it.
struct Found {
  lockstep::Tensor image, truth, prediction;
};

// Two columns of examples, each as image, truth and what was found; shapes have the colours of the legend.
inline Picture contact_sheet(const std::vector<Found>& examples) {
  constexpr int kZoom = 4, kPanel = 48 * kZoom, kGap = 8, kHead = 74, kText = 3;
  constexpr int kColumn = 3 * (kPanel + kGap) + kGap;
  const int rows = (static_cast<int>(examples.size()) + 1) / 2;
  Picture sheet(2 * kColumn + kGap, kHead + rows * (kPanel + kGap), {24, 24, 24});
  constexpr Rgb kWhite{230, 230, 230};
  int at = kGap;
  for (std::size_t label = 1; label < kShapeClasses; ++label) {
    std::string name = kShapeNames[label];
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return static_cast<char>(c - 'a' + 'A'); });
    sheet.fill(at, kGap, 21, 21, kShapeColours[label]);
    sheet.write(at + 30, kGap, name, kText, kWhite);
    at += 30 + static_cast<int>(name.size() + 2) * 6 * kText;
  }
  for (int column = 0; column < 2; ++column)
    for (int panel = 0; panel < 3; ++panel)
      sheet.write(kGap + column * kColumn + panel * (kPanel + kGap), kHead - 32,
                  std::array{"IMAGE", "TRUTH", "FOUND"}[static_cast<std::size_t>(panel)], kText, kWhite);

  for (std::size_t i = 0; i < examples.size(); ++i) {
    const Found& found = examples[i];
    const auto pixels = found.image.to_vector<float>();
    const auto height = static_cast<int>(found.truth.size(0)), width = static_cast<int>(found.truth.size(1));
    const int top = kHead + static_cast<int>(i / 2) * (kPanel + kGap);
    for (int panel = 0; panel < 3; ++panel) {
      std::vector<std::int64_t> labels;
      if (panel > 0) labels = (panel == 1 ? found.truth : found.prediction).to_vector<std::int64_t>();
      const int left = kGap + static_cast<int>(i % 2) * kColumn + panel * (kPanel + kGap);
      const auto label_at = [&](int x, int y) { return labels[static_cast<std::size_t>(y * width + x)]; };
      for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
          std::array<double, 3> colour;
          for (int c = 0; c < 3; ++c)
            colour[static_cast<std::size_t>(c)] = std::clamp(
                127.5 + 115.0 * static_cast<double>(pixels[static_cast<std::size_t>((c * height + y) * width + x)]),
                0.0, 255.0);
          if (panel > 0) {  // grey, with the class over it: strong at its border, lighter inside
            const double grey = 0.7 * (colour[0] + colour[1] + colour[2]) / 3;
            const std::int64_t label = label_at(x, y);
            const bool border =
                (x > 0 && label_at(x - 1, y) != label) || (x + 1 < width && label_at(x + 1, y) != label) ||
                (y > 0 && label_at(x, y - 1) != label) || (y + 1 < height && label_at(x, y + 1) != label);
            const double share = label == 0 ? 0 : border ? 1 : 0.6;
            for (std::size_t c = 0; c < 3; ++c)
              colour[c] = (1 - share) * grey + share * kShapeColours[static_cast<std::size_t>(label)][c];
          }
          const Rgb bytes{static_cast<std::uint8_t>(colour[0]), static_cast<std::uint8_t>(colour[1]),
                          static_cast<std::uint8_t>(colour[2])};
          sheet.fill(left + x * kZoom, top + y * kZoom, kZoom, kZoom, bytes);
        }
    }
  }
  return sheet;
}

}  // namespace example
