#include "lockstep/parallel/bench/session.h"

#include <algorithm>
#include <cmath>

#include "lockstep/runtime/error.h"

namespace lockstep::bench {
namespace {

std::regex compile(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw InvalidArgument(cat("[--filter] expected a regular expression, got '", pattern, "': ", error.what()));
  }
}

}  // namespace

Session::Session(Settings settings) : settings_(std::move(settings)), filter_(compile(settings_.filter)) {
  LOCKSTEP_CHECK(settings_.repetitions >= 0, "[--repetitions] expected a positive number, got ", settings_.repetitions);
  LOCKSTEP_CHECK(settings_.min_seconds >= 0 && std::isfinite(settings_.min_seconds),
                 "[--min-time] expected seconds of at least 0, got ", settings_.min_seconds);
}

bool Session::wants(const std::string& table, const std::string& figure) {
  const std::string name = cat(benchmark_, benchmark_.empty() ? "" : "/", table, '/', figure);
  const bool found = settings_.filter.empty() || std::regex_search(name, filter_);
  if (found) {
    ++wanted_;
    if (settings_.list) parts_.push_back({name, std::nullopt});
  }
  ++figures_;
  return found && !settings_.list;
}

std::int64_t Session::calls_lasting(double seconds, const Calls& run) {
  constexpr std::int64_t kMostCalls = 1'000'000'000'000'000;  // a day and more of one cycle each
  for (std::int64_t count = 1;;) {
    const double took = run(count);
    if (took >= seconds) return count;
    LOCKSTEP_CHECK(count < kMostCalls, "[measure] expected a body that takes time, got ", count, " calls in ", took,
                   " s: the compiler has found that it does nothing");
    // Past the goal by a little; from times too short to trust, by a factor of ten.
    const auto now = static_cast<double>(count);
    count =
        std::min(kMostCalls,
                 static_cast<std::int64_t>(std::clamp(now * seconds * 1.2 / std::max(took, 1e-9), now + 1, now * 10)));
  }
}

Samples Session::sample(std::int64_t calls, const Calls& run) const {
  std::vector<double> values;
  for (int i = 0; i < repetitions(); ++i) values.push_back(run(calls) / static_cast<double>(calls));
  return Samples(std::move(values));
}

void Session::add(Table table) {
  if (!table.empty() && !settings_.list) parts_.push_back({"", std::move(table)});
}

void Session::add_data(Table table) {
  if (!table.empty() && !settings_.list) parts_.push_back({"", std::move(table), false});
}

void Session::add_text(std::string lines) {
  if (!settings_.list) parts_.push_back({std::move(lines), std::nullopt});
}

std::string Session::output(const std::string& program) const {
  LOCKSTEP_CHECK(settings_.filter.empty() || wanted_ > 0, "[--filter] expected a pattern that fits one of ", figures_,
                 " figures (see --list), got '", settings_.filter, "'");
  std::string out;
  if (settings_.list || settings_.format == Format::text) {
    if (!settings_.list && !bare_ && !parts_.empty()) out = context_line();
    for (const Part& part : parts_) {
      if (!part.in_text) continue;
      if (!out.empty() && !settings_.list && !bare_) out += '\n';
      out += part.table ? part.table->text() : part.text + '\n';
    }
    return out;
  }
  const bool any = std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.table.has_value(); });
  if (!any) return out;  // a rank that reports nothing: not even JSON
  if (settings_.format == Format::csv) {
    out = Table::csv_header();
    for (const Part& part : parts_)
      if (part.table) out += part.table->csv();
    return out;
  }
  out = "{\n  \"context\": " + context_json(program, settings_, "  ");
  for (const Part& part : parts_)
    if (part.table) out += cat(",\n  ", json_text(part.table->id()), ": ", part.table->json("  "));
  return out + "\n}\n";
}

}  // namespace lockstep::bench
