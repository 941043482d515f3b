#include <algorithm>
#include <cstdio>

#include "bench.h"

namespace bench {
namespace {

std::string quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

std::string show_json(const Table::Cell& cell) {
  if (!cell.number) return quote(cell.text);
  return cell.text.find_first_of("in") == cell.text.npos ? cell.text : "null";  // inf, nan
}

}  // namespace

Table::Cell::Cell(double value) : number(true) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.4g", value);
  text = digits;
}

std::string Report::text() const {
  std::string out;
  for (const Table& table : tables_) {
    if (!out.empty()) out += '\n';
    out += table.title_ + '\n';
    if (table.columns_.empty()) continue;
    std::vector<std::vector<std::string>> lines{table.columns_};
    for (const auto& row : table.rows_) {
      lines.emplace_back();
      for (const Table::Cell& cell : row) lines.back().push_back(cell.text);
    }
    std::vector<std::size_t> widths(table.columns_.size());
    for (const auto& line : lines) {
      for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    }
    for (const auto& line : lines) {
      std::string row;
      for (std::size_t i = 0; i < line.size(); ++i) {
        // Names to the left, figures to the right.
        const std::string padding(widths[i] - line[i].size(), ' ');
        row += "  " + (i == 0 ? line[i] + padding : padding + line[i]);
      }
      row.erase(row.find_last_not_of(' ') + 1);
      out += row + '\n';
    }
  }
  return out;
}

std::string Report::json() const {
  std::string out = "{";
  const char* table_separator = "\n";
  for (const Table& table : tables_) {
    if (table.columns_.empty()) continue;
    out += table_separator + ("  " + quote(table.title_)) + ": [";
    table_separator = ",\n";
    const char* row_separator = "\n";
    for (const auto& row : table.rows_) {
      out += std::string(row_separator) + "    {";
      row_separator = ",\n";
      for (std::size_t i = 0; i < row.size(); ++i) {
        out += (i ? ", " : "") + quote(table.columns_[i]) + ": " + show_json(row[i]);
      }
      out += '}';
    }
    out += "\n  ]";
  }
  return out + "\n}\n";
}

Subcommand::Subcommand(const char* its_name, const char* its_description, std::function<void(CLI::App&)> its_options,
                       std::function<void(Report&)> its_run)
    : name(its_name), description(its_description), options(std::move(its_options)), run(std::move(its_run)) {
  all().push_back(this);
}

std::vector<Subcommand*>& Subcommand::all() {
  static std::vector<Subcommand*> commands;
  return commands;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace bench
