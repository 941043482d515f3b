// What ranks have seen in their threads, to be checked in the test's.
#pragma once

#include <mutex>
#include <string>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "parallel/support.h"

namespace parallel_test {

class Seen {
 public:
  void operator()(bool right, const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (!right) wrong_ += what + '\n';
  }
  // That `text` (of support::missing, say) is empty.
  void nothing(const std::string& text) { (*this)(text.empty(), text); }
  // Lines, one for each thing that was not right.
  std::string wrong() const { return wrong_; }

 private:
  std::mutex mutex_;
  std::string wrong_;
};

// What ranks see.
template <class F>
void check_ranks(int ranks, F&& body) {
  Seen seen;
  run_ranks(ranks, [&](Communicator& communicator) { body(communicator, seen); });
  CHECK(seen.wrong() == "");
}

template <class E, class F>
bool throws(F&& body) {
  try {
    body();
  } catch (const E&) {
    return true;
  }
  return false;
}

// As CHECK, in any thread where there is a Seen `seen`.
#define SEE(...) \
  seen(static_cast<bool>(__VA_ARGS__), std::string(#__VA_ARGS__) + " in line " + std::to_string(__LINE__))

}  // namespace parallel_test
