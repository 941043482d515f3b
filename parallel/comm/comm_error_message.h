// The words of a CommError without what its constructor puts before them, so that another rank can make the same error.
#pragma once

#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

inline std::string words_of(const CommError& error) {
  std::string text = error.what();
  // The rank is not repeated before words that begin with it.
  for (const std::string& before : {cat("[", error.collective, "] "), cat("rank ", error.rank, ": ")})
    if (text.starts_with(before)) text.erase(0, before.size());
  return text;
}

}  // namespace lockstep::detail
