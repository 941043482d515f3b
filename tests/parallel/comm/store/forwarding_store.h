// The base of stores that do one thing otherwise than another store, and pass on the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/parallel/comm/store/store.h"

namespace lockstep::test {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { next().set(key, value); }
  std::string get(const std::string& key, Deadline deadline) override { return next().get(key, deadline); }
  std::optional<std::string> try_get(const std::string& key) override { return next().try_get(key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return next().add(key, amount); }
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override {
    return next().compare_set(key, expected, desired);
  }
  bool erase(const std::string& key) override { return next().erase(key); }

 protected:
  virtual void before_call() {}  // before each that is passed on
  Store& next() {
    before_call();
    return *store_;
  }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace lockstep::test
