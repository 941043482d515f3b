// What lockstep-run was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/runtime/deadline.h"

namespace lockstep::launch {

struct Options {
  int ranks = 1;                // on this machine, and on every other
  int nodes = 1, node = 0;      // of a round of several: how many it has, and this one's place among them
  std::vector<int> node_ranks;  // --node-rank of each, by place; empty: its place
  std::string master;           // host:port of the store when there are several nodes, or may be; else empty
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
  int restarts = 0;         // rounds after the first that begin because something has failed; see rounds.h
  int restarts_used = 0;
  int max_ranks = 0;  // with restarts: at most so many in a round (and at least min_ranks); 0: all
  int round = 0;
  bool newcomer = false;  // it comes to a job that is under way, and this is its first round
  bool health = false;    // look at the nodes instead of running a program
  std::int64_t min_free_bytes = std::int64_t{64} << 20;  // of memory and of disks, for a node that is fit
  Milliseconds patience{5'000};
  Milliseconds grace{10'000};
  Milliseconds timeout{60'000};
  Milliseconds join_timeout{600'000};  // for nodes to come to a round that has too few ranks
  std::vector<std::string> program;

  int world_size() const { return nodes * ranks; }
  bool several() const { return !master.empty(); }
  int node_rank(int place) const { return node_ranks.empty() ? place : node_ranks[static_cast<std::size_t>(place)]; }
};

// How a round ended: the code to exit with, and what to say; `details` begins with a new line.
struct End {
  enum class Next {
    restart,  // one of the restarts begins a round, where there are any and the code is not 0
    none,     // another round would be no help: a signal, a program that cannot be run
    regroup,  // a round begins with other nodes, which is no restart
  };
  int code = 0;
  std::string message, details;
  Next next = Next::restart;
};

}  // namespace lockstep::launch
