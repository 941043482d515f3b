// Stores that need no connection: within a process, and a part of another store.
#include "lockstep/parallel/comm/store/local_store.h"

namespace lockstep {
namespace detail {

void LocalStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  table_.set(key, value);
  changed_.notify_all();
}

std::string LocalStore::get(const std::string& key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  StoreTable::Value value;
  const auto over = [&] { return (value = table_.find(key)) != nullptr || given_up_; };
  if (deadline.never()) {
    changed_.wait(lock, over);
  } else if (!changed_.wait_until(lock, deadline.time(), over)) {
    throw TimeoutError(cat("[Store.get] nobody set '", key, "' before the deadline"));
  }
  if (!value) throw *given_up_;
  return *value;
}

std::optional<std::string> LocalStore::try_get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto value = table_.find(key);
  return value ? std::optional(*value) : std::nullopt;
}

std::int64_t LocalStore::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  const std::int64_t sum = table_.add(key, amount);
  changed_.notify_all();
  return sum;
}

std::string LocalStore::compare_set(const std::string& key, const std::string& expected, const std::string& desired) {
  const std::lock_guard lock(mutex_);
  const auto value = table_.compare_set(key, expected, desired);
  changed_.notify_all();
  return *value;
}

bool LocalStore::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return table_.erase(key);
}

void LocalStore::give_up(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (!given_up_) given_up_ = error;
  changed_.notify_all();
}

}  // namespace detail

namespace {

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
  std::vector<EndedRank> ended_ranks() override { return store_->ended_ranks(); }

 private:
  std::string full(const std::string& key) const { return prefix_ + '/' + key; }
  std::shared_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_local_store() { return std::make_shared<detail::LocalStore>(); }

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace lockstep
