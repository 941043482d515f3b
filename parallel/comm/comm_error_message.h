// The message of a CommError without what its constructor puts before them, so that another rank can make the same
// error.
#pragma once

#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

inline std::string message_of_failure(const CommError& error) {
  std::string text = error.what();
  // The rank is not repeated before a message that begins with it.
  for (const std::string& before : {cat("[", error.collective, "] "), cat("rank ", error.rank, ": ")})
    if (text.starts_with(before)) text.erase(0, before.size());
  return text;
}

}  // namespace lockstep::detail
