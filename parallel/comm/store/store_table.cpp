#include "lockstep/parallel/comm/store/store_table.h"

#include <charconv>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

void check_key(const char* op, std::string_view key) {
  LOCKSTEP_CHECK(key.size() <= Store::kMaxKeyBytes, "[", op, "] expected a key of at most ", Store::kMaxKeyBytes,
                 " bytes, got ", key.size(), " (", key.substr(0, 40), "...)");
}

void check_value(const char* op, std::string_view key, std::string_view value) {
  LOCKSTEP_CHECK(value.size() <= Store::kMaxValueBytes, "[", op, "] expected a value of at most ",
                 Store::kMaxValueBytes, " bytes for '", key, "', got ", value.size());
}

std::int64_t add_to_text(const std::string& key, std::string_view text, std::int64_t amount) {
  std::int64_t number = 0, sum = 0;
  if (!text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    LOCKSTEP_CHECK(error == std::errc() && end == text.data() + text.size(), "[Store.add] expected '", key,
                   "' to be a number, got '", text.substr(0, 40), "'");
  }
  LOCKSTEP_CHECK(!__builtin_add_overflow(number, amount, &sum), "[Store.add] expected a sum of 64 bits for '", key,
                 "', got ", number, " and ", amount);
  return sum;
}

void StoreTable::set(const std::string& key, std::string value) {
  check_key("Store.set", key);
  check_value("Store.set", key, value);
  const auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : key.size() + found->second->size();
  const std::size_t bytes = bytes_ - before + key.size() + value.size();
  LOCKSTEP_CHECK(found != values_.end() || values_.size() < limits_.keys, "[Store.set] expected at most ", limits_.keys,
                 " keys in a store, got another: '", key, "'");
  LOCKSTEP_CHECK(bytes <= limits_.total_bytes, "[Store.set] expected at most ", limits_.total_bytes,
                 " bytes in a store, got ", bytes, " with '", key, "'");
  values_.insert_or_assign(key, std::make_shared<const std::string>(std::move(value)));
  bytes_ = bytes;
}

std::int64_t StoreTable::add(const std::string& key, std::int64_t amount) {
  const Value now = find(key);
  const std::int64_t sum = add_to_text(key, now ? std::string_view(*now) : std::string_view(), amount);
  set(key, std::to_string(sum));
  return sum;
}

StoreTable::Value StoreTable::compare_set(const std::string& key, const std::string& expected, std::string desired) {
  const Value now = find(key);
  if (now ? *now != expected : !expected.empty()) return now ? now : std::make_shared<const std::string>();
  set(key, std::move(desired));
  return find(key);
}

bool StoreTable::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second->size();
  values_.erase(found);
  return true;
}

}  // namespace lockstep::detail
