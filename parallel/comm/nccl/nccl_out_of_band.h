// What the ranks of an NCCL communicator tell each other through the store. Private to the library.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/parallel/comm/survivors.h"
#include "lockstep/runtime/error.h"

namespace lockstep::nccl {

// Somebody has not come before the deadline.
struct LateError : CommError {
  using CommError::CommError;
};

class OutOfBand {
 public:
  OutOfBand(std::shared_ptr<Store> store, int rank, int size) : store_(std::move(store)), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<Store>& store() const { return store_; }

  // For shrink: the store is this communicator's own.
  lockstep::detail::RollCall roll_call() const;

  // The first failure of any rank stays.
  void report(const CommError& failure);
  std::optional<CommError> failure();

  // Everybody brings a value under `name`, and gets all of them, by rank. `look` is called now and then, and may throw.
  // CommError of `collective`, naming all who have not come, after the time-out (LateError) or when one has left.
  // `deadline`: when the time-out is over, if it has begun before this.
  std::vector<std::string> exchange(const std::string& name, const std::string& mine, const char* collective,
                                    Milliseconds timeout, const std::function<void()>& check_health,
                                    std::optional<Deadline> deadline = std::nullopt);
  // Takes away what `rank` has brought: by the one who knows that nobody looks there any more.
  void forget(const std::string& name, int rank);
  // The value of another rank under `name`. `of_all`: all ranks bring one, and an error at the deadline names all that
  // have not.
  std::string wait_for(const std::string& name, int rank, const char* collective, Milliseconds timeout,
                       Deadline deadline, const std::function<void()>& check_health, bool of_all = false);
  void publish(const std::string& name, const std::string& mine);
  std::optional<std::string> peek(const std::string& name, int rank);

  // Where are the others? Ranks that are asked publish their state. Requests have numbers from 1: what was said to an
  // earlier one may be long over.
  std::int64_t request_states() { return store_->add("where", 1); }
  std::int64_t states_requested();  // the last one; 0: none

  // This rank makes no more calls; `last` is the number of its last collective.
  void leave(std::uint64_t last);
  // A rank that has left before collective number `number`, if any.
  std::optional<int> left_before(std::uint64_t number);

 private:
  std::string missing(const std::string& name, int first);
  std::string key(const std::string& name, int rank) const { return cat(name, '/', rank); }

  const std::shared_ptr<Store> store_;
  const int rank_, size_;
};

}  // namespace lockstep::nccl
