#include "lockstep/parallel/simulate/fields.h"

#include <cmath>
#include <limits>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::simulate {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& name, const std::string& expected, const std::string& got) {
  throw InvalidArgument(cat("[machine] ", name, ": expected ", expected, ", got ", got));
}

std::string shown(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : cat(text.substr(0, 57), "...");
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

}  // namespace

double number_of(const Json& json, const std::string& name) {
  if (!json.is_number()) refuse(name, "a number", shown(json));
  const auto value = json.get<double>();
  if (!(value >= 0) || !std::isfinite(value)) refuse(name, "a number of at least 0", shown(json));
  return value;
}

Fields::Fields(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
  if (!json.is_object()) refuse(path_.empty() ? "the file" : path_, "an object", shown(json));
}

std::string Fields::name_of(const std::string& key) const { return path_.empty() ? key : cat(path_, '.', key); }

void Fields::fail(const std::string& key, const std::string& expected, const std::string& got) const {
  refuse(name_of(key), expected, got);
}

bool Fields::has(const std::string& key) const { return json_.contains(key); }

const Json* Fields::find(const std::string& key) {
  known_.insert(key);
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

const Json& Fields::any(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) fail(key, "a value", "nothing");
  return *value;
}

double Fields::number(const std::string& key, double unit) {
  const Json* value = find(key);
  if (value == nullptr) fail(key, "a number", "nothing");
  return number_of(*value, name_of(key)) * unit;
}

double Fields::number_or(const std::string& key, double fallback, double unit) {
  return find(key) != nullptr ? number(key, unit) : fallback;
}

double Fields::positive(const std::string& key, double unit) {
  const double value = number(key, unit);
  if (value == 0) fail(key, "a number above 0", shown(any(key)));
  return value;
}

int Fields::count(const std::string& key) {
  const double value = number(key);
  if (value != std::floor(value) || value > 1'000'000) fail(key, "a whole number up to 1000000", shown(any(key)));
  return static_cast<int>(value);
}

int Fields::count_or(const std::string& key, int fallback) { return find(key) != nullptr ? count(key) : fallback; }

double Fields::share_or(const std::string& key, double fallback) {
  if (find(key) == nullptr) return fallback;
  const double value = positive(key);
  if (value > 1) fail(key, "a share of at most 1", shown(any(key)));
  return value;
}

bool Fields::flag_or(const std::string& key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "true or false", shown(*value));
  return value->get<bool>();
}

std::string Fields::text(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) fail(key, "a text", "nothing");
  if (!value->is_string()) fail(key, "a text", shown(*value));
  return value->get<std::string>();
}

int Fields::choice(const std::string& key, const std::vector<std::string>& names) {
  const Json* value = find(key);
  if (value != nullptr && value->is_string())
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == value->get<std::string>()) return static_cast<int>(i);
  fail(key, cat("one of ", joined(names)), value == nullptr ? "nothing" : shown(*value));
}

void Fields::objects(const std::string& key, const std::function<void(const std::string&, Fields&)>& visit) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_object()) fail(key, "an object", shown(*value));
  for (const auto& [name, each] : value->items()) {
    Fields fields(each, cat(name_of(key), '.', name));
    visit(name, fields);
    fields.check_all_read();
  }
}

void Fields::list(const std::string& key, const std::function<void(Fields&)>& visit) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_array()) fail(key, "a list", shown(*value));
  for (std::size_t i = 0; i < value->size(); ++i) {
    Fields fields((*value)[i], cat(name_of(key), '[', i, ']'));
    visit(fields);
    fields.check_all_read();
  }
}

void Fields::object(const std::string& key, const std::function<void(Fields&)>& visit) {
  static const Json empty = Json::object();
  const Json* value = find(key);
  Fields fields(value == nullptr ? empty : *value, name_of(key));
  visit(fields);
  fields.check_all_read();
}

void Fields::numbers(const std::string& key, const std::function<void(const std::string&, double)>& visit,
                     double unit) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_object()) fail(key, "an object", shown(*value));
  for (const auto& [name, each] : value->items()) visit(name, number_of(each, cat(name_of(key), '.', name)) * unit);
}

void Fields::texts(const std::string& key, const std::function<void(const std::string&, const std::string&)>& visit) {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_object()) fail(key, "an object", shown(*value));
  for (const auto& [name, each] : value->items()) {
    if (!each.is_string()) refuse(cat(name_of(key), '.', name), "a text", shown(each));
    visit(name, each.get<std::string>());
  }
}

std::vector<std::vector<double>> Fields::rows(const std::string& key, std::size_t width) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) fail(key, "a list", shown(*value));
  std::vector<std::vector<double>> all;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& row = (*value)[i];
    const std::string name = cat(name_of(key), '[', i, ']');
    if (!row.is_array() || row.size() != width) refuse(name, cat("a list of ", width, " numbers"), shown(row));
    all.emplace_back();
    for (const Json& each : row) all.back().push_back(number_of(each, name));
  }
  return all;
}

void Fields::check_all_read() const {
  for (const auto& [key, value] : json_.items())
    if (known_.count(key) == 0)
      fail(key, cat("one of ", joined({known_.begin(), known_.end()})), "a field of another name");
}

}  // namespace lockstep::simulate
