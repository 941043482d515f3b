// One run of a program of benchmarks: what was asked for on its command line, the measuring, and the tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/bench/table.h"

namespace lockstep::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

enum class Format { text, json, csv };

struct Settings {
  Format format = Format::text;
  int repetitions = 0;     // samples of each figure; 0: what the benchmark says
  double min_seconds = 0;  // that a sample lasts at least; 0: what the benchmark says
  std::string filter;      // a regular expression (ECMAScript), found anywhere in a figure's name
  bool list = false;       // print the names of the figures, measure nothing
};

class Session {
 public:
  // Throws InvalidArgument for settings that make no sense.
  explicit Session(Settings settings);

  // Whether the figure is to be measured: not when only names are listed, nor where the filter leaves it out. Its name
  // is <benchmark>/<table>/<figure>.
  bool wants(const std::string& table, const std::string& figure);
  void begin(std::string benchmark) { benchmark_ = std::move(benchmark); }  // the first part of names, from now on

  int repetitions(int otherwise = 9) const { return settings_.repetitions > 0 ? settings_.repetitions : otherwise; }
  const Settings& settings() const { return settings_; }

  // The nanoseconds that one call of `body` takes. Each sample is the average over `calls` calls, or over as many as
  // take the least time that was asked for; one sample before the first warms up and is not counted.
  template <class Body>
  Samples nanoseconds_per_call(int calls, Body&& body) const {
    const auto run = [&](std::int64_t count) {
      const auto begin = Clock::now();
      for (std::int64_t i = 0; i < count; ++i) body();
      return seconds_since(begin);
    };
    return sample(settings_.min_seconds > 0 ? calls_lasting(settings_.min_seconds, run) : warmed_up(calls, run), run)
        .times(1e9);
  }
  // The seconds that one call takes, of which `run` makes as many as it is told and returns how long they took. A
  // sample lasts at least `otherwise` seconds when no least time was asked for.
  Samples seconds_per_call(const std::function<double(std::int64_t)>& run, double otherwise) const {
    return sample(calls_lasting(settings_.min_seconds > 0 ? settings_.min_seconds : otherwise, run), run);
  }

  void add(Table table);             // a table without rows is left out
  void add_data(Table table);        // the same, but not in text
  void add_text(std::string lines);  // between the tables; of text alone
  // From here on text consists of what is added: no line on the machine.
  void say_nothing_else() { bare_ = true; }

  // What the program prints. Throws InvalidArgument when the filter fits no figure.
  std::string output(const std::string& program) const;

  int exit_code = 0;  // of the program: what was measured may be wrong

 private:
  struct Part {
    std::string text;  // lines, or
    std::optional<Table> table;
    bool in_text = true;
  };
  using Calls = std::function<double(std::int64_t)>;  // makes so many, returns the seconds
  static std::int64_t calls_lasting(double seconds, const Calls& run);
  static std::int64_t warmed_up(std::int64_t calls, const Calls& run) { return run(calls), calls; }
  Samples sample(std::int64_t calls, const Calls& run) const;

  Settings settings_;
  std::regex filter_;
  std::string benchmark_;
  std::size_t figures_ = 0, wanted_ = 0;
  std::vector<Part> parts_;
  bool bare_ = false;
};

// The machine, the build and the settings, as JSON or in one line.
std::string context_json(const std::string& program, const Settings& settings, const std::string& indent);
std::string context_line();

}  // namespace lockstep::bench
