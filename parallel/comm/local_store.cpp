// Stores that need no connection: within a process, and a part of another store.
#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

class LocalStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    check(key, value);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const auto present = [&] { return values_.contains(key); };
    if (deadline.time() == Clock::time_point::max()) {
      changed_.wait(lock, present);
    } else if (!changed_.wait_until(lock, deadline.time(), present)) {
      throw TimeoutError(cat("[Store] nobody set '", key, "' before the deadline"));
    }
    return values_.at(key);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const std::lock_guard lock(mutex_);
    std::string& value = values_[key];
    std::int64_t number = 0;
    if (!value.empty()) {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      LOCKSTEP_CHECK(error == std::errc() && end == value.data() + value.size(), "[Store.add] expected '", key,
                     "' to be a number, got '", value.substr(0, 40), "'");
    }
    number += amount;
    value = std::to_string(number);
    changed_.notify_all();
    return number;
  }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    const std::lock_guard lock(mutex_);
    check(key, desired);
    const auto found = values_.find(key);
    const std::string now = found == values_.end() ? "" : found->second;
    if (now != expected) return now;
    values_[key] = desired;
    changed_.notify_all();
    return desired;
  }
  bool erase(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return values_.erase(key) > 0;
  }

 private:
  static void check(const std::string& key, const std::string& value) {
    LOCKSTEP_CHECK(key.size() <= kMaxKeyBytes, "[Store] expected a key of at most ", kMaxKeyBytes, " bytes, got ",
                   key.size());
    LOCKSTEP_CHECK(value.size() <= kMaxValueBytes, "[Store] expected a value of at most ", kMaxValueBytes,
                   " bytes for '", key, "', got ", value.size());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(full(key), value); }
  std::string get(const std::string& key, Deadline deadline) override { return store_->get(full(key), deadline); }
  std::optional<std::string> try_get(const std::string& key) override { return store_->try_get(full(key)); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(full(key), amount); }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    return store_->compare_set(full(key), expected, desired);
  }
  bool erase(const std::string& key) override { return store_->erase(full(key)); }

 private:
  std::string full(const std::string& key) const { return prefix_ + '/' + key; }
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_local_store() { return std::make_shared<LocalStore>(); }

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace lockstep
