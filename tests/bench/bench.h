// A benchmark is one file: it defines a Subcommand at namespace scope, which registers itself.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace bench {

// A table of results: printed as columns, or with --json as an array of objects.
class Table {
 public:
  struct Cell {
    Cell(std::string its_text) : text(std::move(its_text)), number(false) {}  // NOLINT: implicit, as in tables
    Cell(const char* its_text) : Cell(std::string(its_text)) {}               // NOLINT
    template <std::integral T>
    Cell(T value) : text(std::to_string(value)), number(true) {}  // NOLINT
    Cell(double value);                                           // NOLINT: four digits
    std::string text;
    bool number;
  };
  Table(std::string title, std::vector<std::string> columns) : title_(std::move(title)), columns_(std::move(columns)) {}
  void add(std::vector<Cell> row) { rows_.push_back(std::move(row)); }

 private:
  friend class Report;
  std::string title_;
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;
};

class Report {
 public:
  void add(Table table) { tables_.push_back(std::move(table)); }
  // Lines between the tables, which are not in the JSON.
  void add_text(std::string lines) { tables_.emplace_back(std::move(lines), std::vector<std::string>()); }
  std::string text() const;
  std::string json() const;
  bool empty() const { return tables_.empty(); }  // nothing is printed then, not even JSON

  int exit_code = 0;  // of the program: what was measured may be wrong

 private:
  std::vector<Table> tables_;
};

struct Subcommand {
  // `options` declares the command's options on its CLI::App (what they bind to must live on); `run` does the work.
  Subcommand(const char* name, const char* description, std::function<void(CLI::App&)> options,
             std::function<void(Report&)> run);

  std::string name, description;
  std::function<void(CLI::App&)> options;
  std::function<void(Report&)> run;

  static std::vector<Subcommand*>& all();
};

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values);

// Median over `runs` of the nanoseconds that one call of `body` takes, each run averaging over `calls` calls, after one
// run that warms up.
template <class Body>
double nanoseconds_per_call(int runs, int calls, Body body) {
  std::vector<double> times;
  for (int run = -1; run < runs; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    if (run >= 0) times.push_back(seconds_since(begin) * 1e9 / calls);
  }
  return median(std::move(times));
}

}  // namespace bench
