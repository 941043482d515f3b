// The file of --json.
#pragma once

#include <string>

#include "lockstep/parallel/comm/fd.h"

namespace lockstep::launch {

// Opened, and emptied, before anything is started; written once, at the end.
class JsonFile {
 public:
  // An empty path: nothing is written. Throws Error that names the file and the system's reason.
  explicit JsonFile(const std::string& path);
  // Why it could not be written; empty when it was, or need not be.
  std::string write(const std::string& text);

 private:
  std::string path_;
  detail::Fd fd_;
};

}  // namespace lockstep::launch
