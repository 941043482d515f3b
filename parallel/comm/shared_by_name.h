// Things that several threads of a process share while they find each other.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace lockstep::detail {

// What several threads need one of: the first to ask for a name makes it, with the last of `shares` the name is free
// again. Thread-safe.
template <class T>
class SharedByName {
 public:
  template <class Make>
  std::shared_ptr<T> get(const std::string& name, std::size_t shares, const Make& make) {
    const std::lock_guard lock(mutex_);
    Waiting& waiting = waiting_[name];
    if (!waiting.thing) waiting.thing = make();
    std::shared_ptr<T> thing = waiting.thing;
    if (++waiting.asked == shares) waiting_.erase(name);
    return thing;
  }

 private:
  struct Waiting {
    std::shared_ptr<T> thing;
    std::size_t asked = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Waiting> waiting_;
};

}  // namespace lockstep::detail
