// The values of a store, for whoever keeps them in memory. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lockstep/parallel/comm/store/store.h"

namespace lockstep::detail {

struct StoreLimits {
  std::size_t keys = 100'000;
  std::size_t total_bytes = std::size_t{256} << 20;  // of keys and values
};

class StoreTable {
 public:
  // Shared, so that a value on its way to many readers is kept once.
  using Value = std::shared_ptr<const std::string>;

  explicit StoreTable(StoreLimits limits = {}) : limits_(limits) {}

  Value find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : found->second;
  }
  // These throw InvalidArgument, without having changed anything, for what does not fit and for sums of other than
  // numbers. See Store for what they do.
  void set(const std::string& key, std::string value);
  std::int64_t add(const std::string& key, std::int64_t amount);
  Value compare_set(const std::string& key, const std::string& expected, std::string desired);
  bool erase(const std::string& key);

 private:
  StoreLimits limits_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, Value> values_;
};

// What every store checks before anything else.
void check_key(const char* op, std::string_view key);
void check_value(const char* op, std::string_view key, std::string_view value);
// The sum of the number that `text` is (empty: 0) and `amount`.
std::int64_t add_to_text(const std::string& key, std::string_view text, std::int64_t amount);

}  // namespace lockstep::detail
