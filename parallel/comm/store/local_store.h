// The store of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/parallel/comm/store/store_table.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

class LocalStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) override;
  bool erase(const std::string& key) override;

  // Nobody waits any more: who does, or would, for a key that is not there gets the error. The first one stays.
  void give_up(const CommError& error);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  StoreTable table_;
  std::optional<CommError> given_up_;
};

}  // namespace lockstep::detail
