#include "lockstep/runtime/log.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

// Puts sink and level back.
class Restore {
 public:
  explicit Restore(LogSink sink) : level_(log_level()), before_(set_log_sink(std::move(sink))) {}
  ~Restore() {
    set_log_sink(std::move(before_));
    set_log_level(level_);
  }

 private:
  LogLevel level_;
  LogSink before_;
};

}  // namespace

TEST_CASE("messages at or above the level reach the sink") {
  std::vector<std::string> seen;
  Restore restore(
      [&](LogLevel level, std::string_view text) { seen.push_back(cat(static_cast<int>(level), ' ', text)); });
  set_log_level(LogLevel::info);
  CHECK(log_level() == LogLevel::info);
  log(LogLevel::debug, "too low");
  log(LogLevel::info, "a");
  log(LogLevel::error, "b");
  log(LogLevel::off, "not a level to log at");
  CHECK(seen == std::vector<std::string>{"1 a", "3 b"});
  set_log_level(LogLevel::off);
  log(LogLevel::error, "nothing");
  CHECK(seen.size() == 2);
  set_log_level(LogLevel::debug);
  log(LogLevel::debug, "everything");
  CHECK(seen.back() == "0 everything");
}

TEST_CASE("setting a sink returns the one before") {
  int first = 0, second = 0;
  Restore restore([&](LogLevel, std::string_view) { ++first; });
  LogSink before = set_log_sink([&](LogLevel, std::string_view) { ++second; });
  log(LogLevel::error, "to the second");
  REQUIRE(before);
  before(LogLevel::error, "direct");
  CHECK(first == 1);
  CHECK(second == 1);
}

TEST_CASE("a sink that throws or logs does no harm") {
  int calls = 0;
  Restore restore([&](LogLevel, std::string_view) {
    ++calls;
    log(LogLevel::error, "dropped");
    throw std::runtime_error("sink");
  });
  CHECK_NOTHROW(log(LogLevel::error, "one"));
  CHECK_NOTHROW(log(LogLevel::error, "two"));
  CHECK(calls == 2);
}

TEST_CASE("a sink cannot be replaced from within") {
  bool refused = false;
  Restore restore([&](LogLevel, std::string_view) {
    try {
      set_log_sink({});
    } catch (const Error&) {
      refused = true;
    }
  });
  log(LogLevel::error, "one");
  CHECK(refused);
}

TEST_CASE("the sink gets one call at a time") {
  int inside = 0, most = 0, calls = 0;  // plain: the log serialises, and ThreadSanitizer looks on
  Restore restore([&](LogLevel, std::string_view) {
    most = std::max(most, ++inside);
    ++calls;
    --inside;
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 200; ++k) log(LogLevel::error, "x");
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(calls == 800);
  CHECK(most == 1);
}
