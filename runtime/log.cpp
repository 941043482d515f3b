#include "lockstep/runtime/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kLevelNames[] = {"debug", "info", "warning", "error", "off"};

void write_to_standard_error(LogLevel level, std::string_view message) {
  const std::string line = cat("lockstep ", kLevelNames[static_cast<int>(level)], ": ", message, '\n');
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of several threads do not mix
}

struct Log {
  std::mutex mutex;  // one call of the sink at a time
  LogSink sink;
  std::atomic<LogLevel> level{LogLevel::warning};
};

thread_local bool in_sink = false;

Log& state() {
  static Log* const log = [] {
    auto* made = new Log;
    const std::string_view text = detail::environment("LOCKSTEP_LOG");
    for (int level = 0; level < 5; ++level) {
      if (text == kLevelNames[level]) {
        made->level = static_cast<LogLevel>(level);
        return made;
      }
    }
    // Logging starts in places that cannot throw, so a bad level is a warning.
    if (!text.empty()) {
      write_to_standard_error(LogLevel::warning,
                              cat("[LOCKSTEP_LOG] expected debug, info, warning, error or off, got \"", text, "\""));
    }
    return made;
  }();
  return *log;
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
  if (in_sink) throw Error("[set_log_sink] expected to be called outside of the sink, got a call from the sink itself");
  Log& log = state();
  std::lock_guard lock(log.mutex);
  log.sink.swap(sink);
  return sink;
}

void set_log_level(LogLevel level) { state().level.store(level, std::memory_order_relaxed); }

LogLevel log_level() { return state().level.load(std::memory_order_relaxed); }

void log(LogLevel level, const std::string& message) {
  Log& log = state();
  if (level < log.level.load(std::memory_order_relaxed) || level >= LogLevel::off) return;
  if (in_sink) return;  // the sink would wait for itself
  std::lock_guard lock(log.mutex);
  in_sink = true;
  try {
    if (log.sink) {
      log.sink(level, message);
    } else {
      write_to_standard_error(level, message);
    }
  } catch (...) {  // a sink that fails must not fail the work that had something to say
  }
  in_sink = false;
}

}  // namespace lockstep
