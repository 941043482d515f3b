// Worker threads that make numbered items ahead of the one thread that takes them in order. What a DataLoader runs on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/deadline.h"

namespace lockstep::detail {

class LOCKSTEP_API Pipeline {
 public:
  struct Options {
    std::int64_t count = 0;   // items
    int workers = 0;          // 0: await() makes the item in the calling thread
    std::int64_t window = 1;  // an item is begun only when fewer than this many before it wait to be released
    Milliseconds timeout = kDefaultTimeout;
  };
  // produce(item, worker) makes an item, item by item in each worker; it is kept alive until the last call has
  // returned.
  using Produce = std::function<void(std::int64_t item, int worker)>;

  Pipeline(Options options, Produce produce);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  // Begins no further item and waits until those in progress are done. A worker that is not done in time is left to
  // itself, which is logged.
  ~Pipeline();

  // Blocks until `item` has been made; throws what produce threw, and TimeoutError at the deadline. For the items in
  // order, by one thread.
  void await(std::int64_t item);
  // `item` has been taken over: another may have its place.
  void release(std::int64_t item);

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state, int worker) noexcept;
  void stop() noexcept;

  std::shared_ptr<State> state_;  // shared with the threads: one that does not return in time outlives this
};

}  // namespace lockstep::detail
