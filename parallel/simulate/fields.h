// Reads the objects of a machine file field by field. Every error names the field, what was expected and what was got.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace lockstep::simulate {

class Fields {
 public:
  // path: the object's name in errors, empty for the file. Throws Error where json is no object.
  Fields(const nlohmann::json& json, std::string path);

  // Whether there is such a field.
  bool has(const std::string& key) const;
  // A number of at least 0 (above 0 where `positive`) times `unit`; `fallback` where the field is missing, and an error
  // without one.
  double number(const std::string& key, double unit = 1);
  double number_or(const std::string& key, double fallback, double unit = 1);
  double positive(const std::string& key, double unit = 1);
  int count(const std::string& key);
  int count_or(const std::string& key, int fallback);
  // Above 0 and at most 1.
  double share_or(const std::string& key, double fallback);
  bool flag_or(const std::string& key, bool fallback);
  std::string text(const std::string& key);
  // One of `names`; its place among them.
  int choice(const std::string& key, const std::vector<std::string>& names);
  // Calls visit with the fields of an object, by the object's key; with the elements of a list, each an object. Nothing
  // where the field is missing.
  void objects(const std::string& key, const std::function<void(const std::string&, Fields&)>& visit);
  void list(const std::string& key, const std::function<void(Fields&)>& visit);
  // An object within; an empty one where the field is missing. Its fields are checked when visit returns.
  void object(const std::string& key, const std::function<void(Fields&)>& visit);
  // An object of numbers, each at least 0, times unit.
  void numbers(const std::string& key, const std::function<void(const std::string&, double)>& visit, double unit = 1);
  // An object of texts.
  void texts(const std::string& key, const std::function<void(const std::string&, const std::string&)>& visit);
  // A list of lists of numbers (each at least 0), `width` in each.
  std::vector<std::vector<double>> rows(const std::string& key, std::size_t width);
  // The field as it stands, for what has a form of its own; an error where it is missing.
  const nlohmann::json& any(const std::string& key);

  // Throws Error for a field that nobody asked for.
  void check_all_read() const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected, const std::string& got) const;
  std::string name_of(const std::string& key) const;

 private:
  const nlohmann::json* find(const std::string& key);

  const nlohmann::json& json_;
  std::string path_;
  std::set<std::string> known_;
};

// A number of at least 0; throws Error with its name otherwise.
double number_of(const nlohmann::json& json, const std::string& name);

}  // namespace lockstep::simulate
