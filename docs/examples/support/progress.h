// What a program shows while it works: a bar that redraws itself on a terminal, and nothing elsewhere.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace example {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Seconds since the start or the last lap.
  double lap() {
    const double passed = seconds();
    start_ = Clock::now();
    return passed;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

// As printf, into a string.
inline std::string format(const char* pattern, auto... values) {
  std::string text(static_cast<std::size_t>(std::snprintf(nullptr, 0, pattern, values...)), '\0');
  std::snprintf(text.data(), text.size() + 1, pattern, values...);
  return text;
}

class ProgressBar {
 public:
  // Draws only when `wanted` and standard error is a terminal.
  ProgressBar(std::int64_t total, bool wanted) : total_(total), shown_(wanted && ::isatty(STDERR_FILENO)) {}
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar() { clear(); }

  void update(std::int64_t done, const std::string& note) {
    if (!shown_ || (drawn_ && since_.seconds() < 0.1 && done < total_)) return;
    since_.lap();
    drawn_ = true;
    constexpr int kWidth = 30;
    const int filled = total_ > 0 ? static_cast<int>(kWidth * done / total_) : kWidth;
    std::string bar(static_cast<std::size_t>(kWidth), '.');
    for (int i = 0; i < filled; ++i) bar[static_cast<std::size_t>(i)] = '#';
    std::fprintf(stderr, "\r[%s] %lld/%lld %s\033[K", bar.c_str(), static_cast<long long>(done),
                 static_cast<long long>(total_), note.c_str());
    std::fflush(stderr);
  }
  // Takes the bar away, so that a line can be printed in its place.
  void clear() {
    if (!drawn_) return;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
  }

 private:
  std::int64_t total_;
  bool shown_, drawn_ = false;
  Stopwatch since_;
};

}  // namespace example
