// Stores: a few small values by name, shared by the ranks of a job while they find each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep {

// A rank whose process has ended, and how: "exited with code 0".
struct EndedRank {
  int rank;
  std::string how;
};

// Keys have at most kMaxKeyBytes, values kMaxValueBytes (InvalidArgument). Every call is atomic and may come from any
// thread. Calls throw CommError when the store cannot be reached (its host is gone, the deadline is over).
class LOCKSTEP_API Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 1 << 10, kMaxValueBytes = 1 << 20;

  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has set the key. TimeoutError, naming the key, at the deadline.
  virtual std::string get(const std::string& key, Deadline deadline) = 0;
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  // Adds to a number (text in decimal; 0 when absent) and returns the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  // Sets the key to `desired` when it is `expected` (absent: ""), and returns what it is afterwards.
  virtual std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) = 0;
  virtual bool erase(const std::string& key) = 0;  // whether it was there
  // The ranks of the job whose processes have ended, where a launcher serves the store and says so (lockstep-run).
  virtual std::vector<EndedRank> ended_ranks() { return {}; }
};

// Within one process: what ranks that are threads share.
LOCKSTEP_API std::shared_ptr<Store> make_local_store();

// The keys of `store` that begin with "prefix/".
LOCKSTEP_API std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);

}  // namespace lockstep
