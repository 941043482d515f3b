// What the library has to say goes to one replaceable sink; by default warnings and errors go to standard error.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/runtime/api.h"

namespace lockstep {

enum class LogLevel { debug, info, warning, error, off };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

// Replaces the sink and returns the one before it; an empty sink restores the default. May be called from any thread;
// the sink is called from any thread, one call at a time, and must not log itself.
LOCKSTEP_API LogSink set_log_sink(LogSink sink);

// Messages below `level` are dropped. Default: LOCKSTEP_LOG (debug, info, warning, error, off), else warning.
LOCKSTEP_API void set_log_level(LogLevel level);
LOCKSTEP_API LogLevel log_level();

LOCKSTEP_API void log(LogLevel level, const std::string& message);

}  // namespace lockstep
