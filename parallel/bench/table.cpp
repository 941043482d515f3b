#include "lockstep/parallel/bench/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/error.h"

namespace lockstep::bench {
namespace {

std::string digits(const char* format, double number) {
  char text[64];
  std::snprintf(text, sizeof text, format, number);
  return text;
}

// For people: four digits, and no exponent where whole numbers can still be read.
std::string four_digits(double number) {
  const double size = std::abs(number);
  return digits(size >= 999.5 && size < 1e9 ? "%.0f" : "%.4g", number);
}

// The shortest form that reads back as the same number.
std::string json_number(double number) { return std::isfinite(number) ? number_to_string(number) : "null"; }

std::string percent(double part) { return cat("±", digits(part < 0.095 ? "%.1f" : "%.0f", part * 50), "%"); }

std::string json_samples(const Samples& samples) {
  std::string text = "{";
  const auto add = [&](const char* name, double value) {
    text += cat(text.size() > 1 ? ", " : "", '"', name, "\": ", json_number(value));
  };
  add("median", samples.median());
  add("min", samples.min());
  add("p05", samples.percentile(5));
  add("p95", samples.percentile(95));
  add("p99", samples.percentile(99));
  add("max", samples.max());
  add("mean", samples.mean());
  add("stddev", samples.stddev());
  text += ", \"samples\": [";
  for (std::size_t i = 0; i < samples.count(); ++i) text += cat(i ? ", " : "", json_number(samples.values()[i]));
  return text + "]}";
}

std::string json_cell(const Table::Cell& cell) {
  struct Show {
    std::string operator()(const std::string& text) const { return json_text(text); }
    std::string operator()(bool answer) const { return answer ? "true" : "false"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return json_number(number); }
    std::string operator()(const Samples& samples) const { return json_samples(samples); }
  };
  return std::visit(Show{}, cell.value);
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// Columns of a terminal, not bytes: "±" is one.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Table::Cell Table::Cell::bytes(std::uint64_t count) {
  Cell cell(count);
  cell.shown = bytes_to_string(count);
  return cell;
}

Table::Cell Table::Cell::decimals(double number, int after_the_point) {
  Cell cell(number);
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", after_the_point, number);
  cell.shown = text;
  return cell;
}

std::string Table::Cell::text() const {
  struct Show {
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(bool answer) const { return answer ? "yes" : "no"; }
    std::string operator()(std::int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return four_digits(number); }
    std::string operator()(const Samples& samples) const { return four_digits(samples.median()); }
  };
  return shown.empty() ? std::visit(Show{}, value) : shown;
}

Table::Table(std::string id, std::string title, std::vector<std::string> columns, int labels, Style style)
    : id_(std::move(id)), title_(std::move(title)), columns_(std::move(columns)), labels_(labels), style_(style) {}

void Table::add(std::vector<Cell> row) {
  LOCKSTEP_CHECK(row.size() == columns_.size(), "[Table] expected ", columns_.size(), " cells for the columns of '",
                 id_, "', got ", row.size());
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::string out = title_ + '\n';
  if (columns_.empty()) return out;
  std::vector<bool> measured(columns_.size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      measured[i] = measured[i] || (style_ == Style::list && std::holds_alternative<Samples>(row[i].value));
  std::vector<std::vector<std::string>> lines(1);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    lines[0].push_back(columns_[i]);
    if (measured[i]) lines[0].insert(lines[0].end(), {"min", "p95", "spread"});
  }
  for (const auto& row : rows_) {
    std::vector<std::string>& line = lines.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto* const samples = std::get_if<Samples>(&row[i].value);
      line.push_back(row[i].text() + (samples && !measured[i] ? ' ' + percent(samples->spread()) : ""));
      if (!measured[i]) continue;
      if (samples)
        line.insert(line.end(),
                    {four_digits(samples->min()), four_digits(samples->percentile(95)), percent(samples->spread())});
      else
        line.insert(line.end(), 3, "");
    }
  }
  std::vector<std::size_t> widths(lines[0].size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width(line[i]));
  for (const auto& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      // Names to the left, figures to the right. (A label has no statistics, so its column is where it was.)
      const std::string padding(widths[i] - width(line[i]), ' ');
      row += "  " + (i < static_cast<std::size_t>(labels_) ? line[i] + padding : padding + line[i]);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    out += row + '\n';
  }
  return out;
}

std::string Table::json(const std::string& indent) const {
  std::string out = "[";
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    out += cat(r ? ",\n" : "\n", indent, "  {");
    for (std::size_t i = 0; i < columns_.size(); ++i)
      out += cat(i ? ", " : "", json_text(columns_[i]), ": ", json_cell(rows_[r][i]));
    out += '}';
  }
  return out + '\n' + indent + ']';
}

std::string Table::csv_header() { return "table,row,column,value,min,p05,p95,p99,max,mean,stddev,samples\n"; }

std::string Table::csv() const {
  std::string out;
  const auto labels = static_cast<std::size_t>(labels_);
  for (const auto& row : rows_) {
    std::string name;
    for (std::size_t i = 0; i < labels; ++i) name += cat(i ? "/" : "", row[i].text());
    for (std::size_t i = labels; i < row.size(); ++i) {
      out += cat(csv_field(id_), ',', csv_field(name), ',', csv_field(columns_[i]), ',');
      if (const auto* samples = std::get_if<Samples>(&row[i].value)) {
        out += json_number(samples->median());
        for (const double figure : {samples->min(), samples->percentile(5), samples->percentile(95),
                                    samples->percentile(99), samples->max(), samples->mean(), samples->stddev()})
          out += cat(',', json_number(figure));
        out += cat(',', samples->count(), '\n');
      } else {
        const auto* text = std::get_if<std::string>(&row[i].value);
        out += cat(text ? csv_field(*text) : json_cell(row[i]), ",,,,,,,,\n");
      }
    }
  }
  return out;
}

}  // namespace lockstep::bench
