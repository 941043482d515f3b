// Fields of JSON objects that stand in files, read with suspicion. Private to the library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::detail {

// An object of a file: the file's own, or one inside. A field that is null counts as absent. All throw FormatError,
// naming the file and the field, for a field of another type, and where one is wanted that is absent.
class JsonFile {
 public:
  // Throws Error when the system cannot read, FormatError for what is no JSON object.
  static JsonFile read(const std::string& path);
  static JsonFile parse(const std::string& text, const std::string& file);

  bool has(const std::string& field) const;
  std::int64_t integer(const std::string& field) const;
  std::int64_t integer(const std::string& field, std::int64_t otherwise) const;
  double number(const std::string& field) const;
  double number(const std::string& field, double otherwise) const;
  bool boolean(const std::string& field, bool otherwise) const;
  std::string text(const std::string& field) const;
  std::string text(const std::string& field, const std::string& otherwise) const;
  std::optional<JsonFile> object(const std::string& field) const;
  std::vector<std::string> texts(const std::string& field) const;  // of an array; empty when absent
  // Of an object with texts as values, in the order of the names.
  std::vector<std::pair<std::string, std::string>> text_fields(const std::string& field) const;

  // An integer from `least` to `most`, which is what no model has, and what products cannot overflow with.
  std::int64_t size(const std::string& field, std::int64_t least = 1, std::int64_t most = std::int64_t{1} << 30) const;
  // A number from 0 to 1.
  double share(const std::string& field, double otherwise) const;

  const std::string& file() const;
  // FormatError at the place where the file names the field.
  [[noreturn]] void fail(const std::string& field, const std::string& why) const;
  // NotSupported: the file asks for what the library does not do.
  [[noreturn]] void refuse(const std::string& field, const std::string& why) const;

 private:
  struct Document;
  JsonFile(std::shared_ptr<const Document> document, const void* object, std::string path)
      : document_(std::move(document)), object_(object), path_(std::move(path)) {}
  const void* find(const std::string& field) const;    // null when absent
  const void* wanted(const std::string& field) const;  // throws then
  std::string full(const std::string& field) const { return path_ + field; }

  std::shared_ptr<const Document> document_;
  const void* object_;
  std::string path_;  // of the objects around: "rope_scaling."
};

}  // namespace lockstep::detail
