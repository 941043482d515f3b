// How the ranks of a job ended, and which of them failed first.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

struct RankEnd {
  static constexpr int kNobody = -2, kUnknownRank = -1;
  // cut: it still ran when lockstep-run ended it; stopped: so it did, but stopped by a signal; lost: with its node.
  enum class How { exited, killed, stopped, cut, lost };

  int rank = 0;
  How how = How::cut;
  int number = 0;          // the code it exited with, or the signal
  std::int64_t order = 0;  // milliseconds since 1970
  // Whom it said its failure is about, when, and in what words; without any, the last line of its standard error.
  int blamed = kNobody;
  std::int64_t blamed_order = 0;
  std::string error;
  int node = -1;  // its --node-rank; -1: there is one node alone
  std::string host;
  pid_t process = -1;
  std::string log;  // its file; empty: none

  bool failed() const { return how == How::killed || how == How::lost || (how == How::exited && number != 0); }
  bool ended_well() const { return how == How::exited && number == 0; }
  // It does not fail for itself.
  bool follows() const { return blamed != kNobody && blamed != rank; }
};

// The end of a job in which a rank has failed: the code of the one that failed first, its name, and below them a line
// for each that failed. What ranks say of each other comes before the order in which they ended: one that notices
// another's failure may well be gone sooner than that one.
End end_of(std::vector<RankEnd> ranks);
// Its number, or RankEnd::kNobody.
int first_failure(std::vector<RankEnd> ranks);

// "exited with code 3", "was killed by signal 9 (SIGKILL)".
std::string describe(const RankEnd& rank);
std::string signal_name(int signal);
// Where lockstep-run writes what the rank writes; empty without a folder for it.
std::string log_file(const std::string& folder, int rank);

// A signal to lockstep-run ends the job, for good.
End end_by_signal(int signal);

// As text, for the store.
std::string to_text(const End& end);
End parse_end(const std::string& text);
std::string to_text(const std::vector<RankEnd>& ranks);
std::vector<RankEnd> parse_ends(const std::string& text);

}  // namespace lockstep::launch
