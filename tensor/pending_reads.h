// Copies out of a memory that are under way while its owner goes on: who writes the memory comes after them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/runtime/stream/stream.h"

namespace lockstep {

class LOCKSTEP_API PendingReads {
 public:
  // What is on `copies`, up to `done`, reads the memory. It takes the place of what was added for that stream before.
  void add(const Stream& copies, std::shared_ptr<const Event> done);
  // What `stream` does from now on comes after them. Does not block, and makes no event call when it has been called
  // for this stream last.
  void await(const Stream& stream) {
    if (settled_.load(std::memory_order_acquire) != &stream.body() && !stream.synchronous()) await_all(stream);
  }

 private:
  struct Read {
    const detail::StreamBody* on;
    std::shared_ptr<const Event> done;
  };
  void await_all(const Stream& stream);

  std::atomic<const detail::StreamBody*> settled_{nullptr};  // the last stream that has waited for all
  std::mutex mutex_;
  std::vector<Read> reads_;
};

}  // namespace lockstep
