// What lockstep-run was asked for.
#pragma once

#include <string>
#include <vector>

#include "lockstep/runtime/deadline.h"

namespace lockstep::launch {

struct Options {
  int ranks = 1;  // on this machine, and on every other
  int nodes = 1, node = 0;
  std::string master;  // host:port of the store when there are several nodes
  std::string token_file;
  bool prefix = true;
  bool bind = false;
  bool pty = true;      // for standard output, so that programs write line by line
  std::string log_dir;  // a file per rank in it; empty: none
  bool tee = false;     // to the files and here
  Milliseconds patience{5'000};
  Milliseconds grace{10'000};
  Milliseconds timeout{60'000};
  std::vector<std::string> program;
};

// How the job ended: the code to exit with, and what to say; `details` begins with a new line.
struct End {
  int code = 0;
  std::string message, details;
};

}  // namespace lockstep::launch
