// Tables of results: figures with their samples, facts and names, as text, JSON or CSV.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/parallel/bench/samples.h"

namespace lockstep::bench {

class Table {
 public:
  // What stands in a cell: a number stays one in JSON, whatever it looks like in text.
  struct Cell {
    using Value = std::variant<std::string, bool, std::int64_t, double, Samples>;
    Cell(std::string text) : value(std::move(text)) {}                             // NOLINT: implicit, as in tables
    Cell(const char* text) : Cell(std::string(text)) {}                            // NOLINT
    Cell(bool answer) : value(answer) {}                                           // NOLINT
    Cell(std::integral auto number) : value(static_cast<std::int64_t>(number)) {}  // NOLINT
    Cell(double number) : value(number) {}                                         // NOLINT: four digits in text
    Cell(Samples samples) : value(std::move(samples)) {}  // NOLINT: the median in text, with what says how sure it is
    static Cell bytes(std::uint64_t count);               // "16 MiB" in text
    static Cell decimals(double number, int after_the_point);  // fixed, as nccl-tests prints

    std::string text() const;
    Value value;
    std::string shown;  // in text; empty: as the value is
  };

  // Samples are followed by their minimum, 95th percentile and spread, or in a matrix stand with the spread alone.
  enum class Style { list, matrix };

  // `id` names the table in JSON, in CSV and for filters: it holds no parameters. The first `labels` columns say what a
  // row is.
  Table(std::string id, std::string title, std::vector<std::string> columns, int labels = 1, Style style = Style::list);

  // Throws InvalidArgument unless there is a cell for each column.
  void add(std::vector<Cell> row);

  const std::string& id() const { return id_; }
  bool empty() const { return rows_.empty(); }

  std::string text() const;
  std::string json(const std::string& indent) const;  // an array with an object per row
  std::string csv() const;                            // a line per cell that is no label
  static std::string csv_header();

 private:
  std::string id_, title_;
  std::vector<std::string> columns_;
  int labels_;
  Style style_;
  std::vector<std::vector<Cell>> rows_;
};

std::string json_text(const std::string& text);

}  // namespace lockstep::bench
