// What lockstep-run was asked for.
#pragma once

#include <cstdint>
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
  bool pty = true;          // for standard output, so that programs write line by line
  std::string log_dir;      // a file per rank in it; empty: none
  std::string tee;          // which streams of which ranks go to the files and here; see shown.h
  std::string show;         // the ranks whose lines are shown here; empty: all
  std::string json;         // the file for what programs read; empty: none
  bool keep_going = false;  // ranks go on when one fails
  int min_ranks = 0;        // with keep_going: so many must end well, then the code is 0; 0: all, and nobody is ended
  int restarts = 0;         // rounds after the first, each of which begins when a rank has failed; see rounds.h
  int max_ranks = 0;        // with restarts: at most so many in a round (and at least min_ranks); 0: all
  int round = 0;
  bool health = false;                                   // look at the nodes instead of running a program
  std::int64_t min_free_bytes = std::int64_t{64} << 20;  // of memory and of disks, for a node that is fit
  Milliseconds patience{5'000};
  Milliseconds grace{10'000};
  Milliseconds timeout{60'000};
  std::vector<std::string> program;

  int world_size() const { return nodes * ranks; }
};

// How the job ended: the code to exit with, and what to say; `details` begins with a new line.
struct End {
  int code = 0;
  std::string message, details;
  bool final = false;  // another round would be no help: a signal, a program that cannot be run
};

}  // namespace lockstep::launch
