// The main function of test programs on the fake: failures that no test took make the program fail, whatever the
// tests' own assertions say.
#include <cstdio>
#include <memory>

#include "fake_cuda/fake_cuda.h"
#include "support/catch_listener.h"
#include "support/run_tests.h"

namespace {

using support::Listener;

// Tells the fake which test runs, and holds the tests to leave the main thread's device as it was (tests_keep_device).
class FakeListener : public Listener {
 public:
  using Listener::Listener;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    Listener::testCaseStarting(info);
    fake_cuda::begin_test(info.name);
    if (fake_cuda::tests_keep_device) {
      current_ = std::make_unique<fake_cuda::KeepsCurrentDevice>("the end of the test");
    }
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    current_.reset();
    fake_cuda::end_test();
    Listener::testCaseEnded(stats);
  }

 private:
  std::unique_ptr<fake_cuda::KeepsCurrentDevice> current_;
};
CATCH_REGISTER_LISTENER(FakeListener)

}  // namespace

int main(int argc, char** argv) {
  const int result = support::run_tests(argc, argv);
  fake_cuda::check_end();
  const std::vector<fake_cuda::Failure> failures = fake_cuda::take_failures();
  constexpr std::size_t kMostPrinted = 50;
  for (std::size_t i = 0; i < failures.size() && i < kMostPrinted; ++i) {
    std::fprintf(stderr, "fake CUDA: %s\n", to_string(failures[i]).c_str());
  }
  if (failures.empty()) return result;
  std::fprintf(stderr, "fake CUDA: %zu broken rules\n", failures.size());
  return 1;
}
