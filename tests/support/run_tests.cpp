#include "support/run_tests.h"

#include <atomic>
#include <cstdio>
#include <thread>

#define CATCH_CONFIG_RUNNER
#include "support/catch_listener.h"

namespace {

using support::Listener;

std::atomic<int> strays{0};

// Assertions outside of the test's thread are races in Catch2, which it survives most of the time: found here always.
class StrayListener : public Listener {
 public:
  using Listener::Listener;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    Listener::testCaseStarting(info);
    thread_ = std::this_thread::get_id();
  }
  void assertionStarting(const Catch::AssertionInfo& info) override {
    if (std::this_thread::get_id() == thread_ || strays.fetch_add(1) >= kMostPrinted) return;
    std::fprintf(stderr,
                 "%s:%zu: an assertion outside of the test's thread: return what was seen, and check it there\n",
                 info.lineInfo.file, info.lineInfo.line);
  }

 private:
  static constexpr int kMostPrinted = 10;
  std::thread::id thread_;
};
CATCH_REGISTER_LISTENER(StrayListener)

}  // namespace

// Threads that catch one exception share it, and the last one destroys it. They are ordered by a count in libstdc++,
// which is compiled without ThreadSanitizer: it sees the destructor only. Hidden symbols are not found by its library.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() { return "race:std::__exception_ptr::exception_ptr::_M_release\n"; }

namespace support {

int run_tests(int argc, char** argv) {
  const int result = Catch::Session().run(argc, argv);
  return result == 0 && strays != 0 ? 1 : result;
}

}  // namespace support
