#include "lockstep/models/checkpoint/json_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/io/file.h"

namespace lockstep::detail {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxBytes = 100'000'000;  // an index of a million tensors

const json& as_json(const void* value) { return *static_cast<const json*>(value); }

// For messages; without the library's own writer of JSON, which is large.
std::string described(const json* value) {
  if (!value) return "absent";
  if (const auto* text = value->get_ptr<const std::string*>()) return cat('"', *text, '"');
  if (const auto* truth = value->get_ptr<const bool*>()) return *truth ? "true" : "false";
  if (const auto* integer = value->get_ptr<const std::int64_t*>()) return cat(*integer);
  return value->is_number() ? cat(value->get<double>()) : cat("an ", value->type_name());
}

}  // namespace

struct JsonFile::Document {
  std::string file, text;
  json root;
};

JsonFile JsonFile::read(const std::string& path) {
  const InputFile file("load_checkpoint", path);
  if (file.bytes() > kMaxBytes)
    throw FormatError(path, kMaxBytes, cat("expected at most ", kMaxBytes, " bytes of JSON, got ", file.bytes()));
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), text.size());
  return parse(text, path);
}

JsonFile JsonFile::parse(const std::string& text, const std::string& file) {
  auto document = std::make_shared<Document>();
  document->file = file;
  document->text = text;
  try {
    document->root = json::parse(text);
  } catch (const json::parse_error& error) {
    throw FormatError(file, error.byte, cat("expected JSON: ", error.what()));
  } catch (const json::exception& error) {  // a number that is too large
    throw FormatError(file, 0, cat("expected JSON: ", error.what()));
  }
  if (!document->root.is_object())
    throw FormatError(file, 0, cat("expected a JSON object, got ", document->root.type_name()));
  const void* root = &document->root;
  return {std::move(document), root, ""};
}

const std::string& JsonFile::file() const { return document_->file; }

void JsonFile::fail(const std::string& field, const std::string& why) const {
  const std::size_t at = document_->text.find(cat('"', field, '"'));
  throw FormatError(file(), at == std::string::npos ? 0 : at, cat("field \"", full(field), "\": ", why));
}

void JsonFile::refuse(const std::string& field, const std::string& why) const {
  lockstep::detail::fail<NotSupported>("[load_checkpoint] ", file(), ": field \"", full(field), "\" is ",
                                       described(static_cast<const json*>(find(field))), ": ", why);
}

const void* JsonFile::find(const std::string& field) const {
  const json& object = as_json(object_);
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const void* JsonFile::wanted(const std::string& field) const {
  const void* found = find(field);
  if (!found) fail(field, "expected a value, the file has none");
  return found;
}

bool JsonFile::has(const std::string& field) const { return find(field) != nullptr; }

std::int64_t JsonFile::integer(const std::string& field) const {
  const json& value = as_json(wanted(field));
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX})
    fail(field, "expected an integer of 64 bits");
  if (!value.is_number_integer()) fail(field, cat("expected an integer, got ", value.type_name()));
  return value.get<std::int64_t>();
}

std::int64_t JsonFile::integer(const std::string& field, std::int64_t otherwise) const {
  return has(field) ? integer(field) : otherwise;
}

std::int64_t JsonFile::size(const std::string& field, std::int64_t least, std::int64_t most) const {
  const std::int64_t value = integer(field);
  if (value < least || value > most) fail(field, cat("expected a number from ", least, " to ", most, ", got ", value));
  return value;
}

double JsonFile::number(const std::string& field) const {
  const json& value = as_json(wanted(field));
  if (!value.is_number()) fail(field, cat("expected a number, got ", value.type_name()));
  return value.get<double>();
}

double JsonFile::number(const std::string& field, double otherwise) const {
  return has(field) ? number(field) : otherwise;
}

double JsonFile::share(const std::string& field, double otherwise) const {
  const double value = number(field, otherwise);
  if (!(value >= 0 && value <= 1)) fail(field, cat("expected a number from 0 to 1, got ", value));
  return value;
}

bool JsonFile::boolean(const std::string& field, bool otherwise) const {
  if (!has(field)) return otherwise;
  const json& value = as_json(find(field));
  if (!value.is_boolean()) fail(field, cat("expected true or false, got ", value.type_name()));
  return value.get<bool>();
}

std::string JsonFile::text(const std::string& field) const {
  const json& value = as_json(wanted(field));
  if (!value.is_string()) fail(field, cat("expected a text, got ", value.type_name()));
  return value.get<std::string>();
}

std::string JsonFile::text(const std::string& field, const std::string& otherwise) const {
  return has(field) ? text(field) : otherwise;
}

std::optional<JsonFile> JsonFile::object(const std::string& field) const {
  const void* found = find(field);
  if (!found) return {};
  if (!as_json(found).is_object()) fail(field, cat("expected an object, got ", as_json(found).type_name()));
  return JsonFile(document_, found, cat(full(field), '.'));
}

std::vector<std::string> JsonFile::texts(const std::string& field) const {
  if (!has(field)) return {};
  const json& list = as_json(find(field));
  if (!list.is_array()) fail(field, cat("expected an array, got ", list.type_name()));
  std::vector<std::string> all;
  for (const json& each : list) {
    if (!each.is_string()) fail(field, cat("expected texts, got ", each.type_name()));
    all.push_back(each.get<std::string>());
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> JsonFile::text_fields(const std::string& field) const {
  std::vector<std::pair<std::string, std::string>> all;
  const json& object = as_json(wanted(field));
  if (!object.is_object()) fail(field, cat("expected an object, got ", object.type_name()));
  for (const auto& [name, value] : object.items()) {
    if (!value.is_string()) fail(field, cat("expected a text for \"", name, "\", got ", value.type_name()));
    all.emplace_back(name, value.get<std::string>());
  }
  return all;
}

}  // namespace lockstep::detail
