#include "lockstep/parallel/simulate/plot.h"

#include "lockstep/runtime/error.h"

#ifdef LOCKSTEP_SIMULATE_PNG
#include <png.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "lockstep/runtime/whole_file.h"

namespace lockstep::simulate {
namespace {

constexpr int kWidth = 960, kHeight = 640, kLeft = 90, kRight = 40, kTop = 90, kBottom = 80, kDot = 3;

struct Colour {
  unsigned char red, green, blue;
};
constexpr Colour kBlack{30, 30, 30}, kGrid{225, 225, 225}, kIdeal{150, 150, 150}, kCurve{20, 90, 200};

// Letters of three by five dots: a digit of a row is its dots, as in base 8, the uppermost row first.
struct Glyph {
  char letter;
  int rows;
};
constexpr Glyph kGlyphs[] = {{'0', 075557}, {'1', 026227}, {'2', 071747}, {'3', 071717}, {'4', 055711}, {'5', 074717},
                             {'6', 074757}, {'7', 071244}, {'8', 075757}, {'9', 075717}, {'A', 025755}, {'B', 065656},
                             {'C', 034443}, {'D', 065556}, {'E', 074647}, {'F', 074644}, {'G', 034553}, {'H', 055755},
                             {'I', 072227}, {'J', 011152}, {'K', 055655}, {'L', 044447}, {'M', 057755}, {'N', 065555},
                             {'O', 025552}, {'P', 065644}, {'Q', 025573}, {'R', 065655}, {'S', 034216}, {'T', 072222},
                             {'U', 055557}, {'V', 055552}, {'W', 055775}, {'X', 055255}, {'Y', 055222}, {'Z', 071247},
                             {'.', 000002}, {',', 000024}, {'%', 051245}, {'-', 000700}, {':', 002020}, {'/', 011244}};

class Canvas {
 public:
  Canvas() : pixels_(std::size_t{3} * kWidth * kHeight, 255) {}

  void box(int x, int y, int width, int height, Colour colour) {
    for (int j = std::max(y, 0); j < std::min(y + height, kHeight); ++j)
      for (int i = std::max(x, 0); i < std::min(x + width, kWidth); ++i) {
        unsigned char* const at = &pixels_[3 * (static_cast<std::size_t>(j) * kWidth + static_cast<std::size_t>(i))];
        at[0] = colour.red, at[1] = colour.green, at[2] = colour.blue;
      }
  }
  void line(double x0, double y0, double x1, double y1, int thick, Colour colour) {
    const int steps = std::max(1, static_cast<int>(std::ceil(std::max(std::abs(x1 - x0), std::abs(y1 - y0)))));
    for (int i = 0; i <= steps; ++i)
      box(static_cast<int>(x0 + (x1 - x0) * i / steps) - thick / 2,
          static_cast<int>(y0 + (y1 - y0) * i / steps) - thick / 2, thick, thick, colour);
  }
  // Centred at x, or beginning there.
  void text(int x, int y, const std::string& text, bool centred, Colour colour) {
    if (centred) x -= static_cast<int>(text.size()) * 4 * kDot / 2;
    for (const char letter : text) {
      const char wanted = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
      for (const Glyph& glyph : kGlyphs)
        for (int dot = 0; glyph.letter == wanted && dot < 15; ++dot)
          if ((glyph.rows >> (14 - dot) & 1) != 0) box(x + dot % 3 * kDot, y + dot / 3 * kDot, kDot, kDot, colour);
      x += 4 * kDot;
    }
  }
  std::string png() {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = kWidth;
    image.height = kHeight;
    image.format = PNG_FORMAT_RGB;
    std::string bytes(pixels_.size() + 65536, '\0');
    png_alloc_size_t size = bytes.size();
    if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels_.data(), 0, nullptr) == 0)
      throw Error(cat("[--plot] libpng: ", image.message));
    bytes.resize(size);
    return bytes;
  }

 private:
  std::vector<unsigned char> pixels_;
};

}  // namespace

void plot_scaling(const std::vector<SweepRow>& rows, const std::string& title, const std::string& path) {
  LOCKSTEP_CHECK(!rows.empty(), "[--plot] expected at least one row, got none");
  const int fewest = rows.front().devices, most = std::max(rows.back().devices, fewest + 1);
  const double first = fewest, last = most;
  const auto share = [&](double count) { return std::log2(count / first) / std::log2(last / first); };
  const auto x = [&](double devices) { return kLeft + share(devices) * (kWidth - kLeft - kRight); };
  const auto y = [&](double speed) {
    return kHeight - kBottom - share(std::max(speed, first / 2)) * (kHeight - kTop - kBottom);
  };
  Canvas canvas;
  canvas.text(kWidth / 2, 24, title, true, kBlack);
  canvas.text(kWidth / 2, kHeight - 28, "devices", true, kBlack);
  canvas.text(12, kTop - 34, "speedup, efficiency in %", false, kBlack);
  const auto grid = [&](int count) {
    const std::string label = std::to_string(count);
    canvas.line(x(count), y(first), x(count), y(last), 1, kGrid);
    canvas.line(x(first), y(count), x(last), y(count), 1, kGrid);
    canvas.text(static_cast<int>(x(count)), kHeight - kBottom + 12, label, true, kBlack);
    canvas.text(kLeft - 14 - static_cast<int>(label.size()) * 4 * kDot, static_cast<int>(y(count)) - 7, label, false,
                kBlack);
  };
  for (int count = fewest; count < most; count *= 2) grid(count);
  grid(most);
  canvas.line(x(first), y(first), x(last), y(last), 2, kIdeal);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double at = x(rows[i].devices), height = y(rows[i].devices * rows[i].efficiency);
    if (i > 0)
      canvas.line(x(rows[i - 1].devices), y(rows[i - 1].devices * rows[i - 1].efficiency), at, height, 3, kCurve);
    canvas.box(static_cast<int>(at) - 5, static_cast<int>(height) - 5, 11, 11, kCurve);
    char label[32];
    std::snprintf(label, sizeof label, "%.1f", rows[i].efficiency * 100);
    // Below the line, which ascends; of the first, above the axis.
    canvas.text(static_cast<int>(at) + (i == 0 ? 6 : -24), static_cast<int>(height) + (i == 0 ? -60 : 16), label, false,
                kCurve);
  }
  detail::write_whole_file("--plot", path, canvas.png());
}

}  // namespace lockstep::simulate

#else

namespace lockstep::simulate {

void plot_scaling(const std::vector<SweepRow>&, const std::string&, const std::string& path) {
  throw NotSupported(
      cat("[--plot] expected a build with libpng (Debian package libpng-dev) to draw ", path, ", got one without"));
}

}  // namespace lockstep::simulate

#endif
