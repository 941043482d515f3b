// The processes of a cell: what their ranks do, and say of it.
#pragma once

#include <cstdint>
#include <string>

#include "cell.h"

namespace failures {

// Where the deadline is what notices the failure; ten times that is the most that a rank may take. Survivors must come
// to their calls within it of each other, which takes them ten times as long under a sanitizer.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kDeadlineMilliseconds = 10'000;
#else
inline constexpr int kDeadlineMilliseconds = 2000;
#endif
inline constexpr int kSlack = 10;
inline constexpr char kStruck[] = "struck";  // in the store: when, by shared_clock()

struct RankProcess {
  Cell cell;
  std::uint64_t seed;
  int process;
  std::string store, folder;  // "host:port"; for the checkpoint
};

// Runs the process's ranks, a thread each, and prints a line per rank: "rank <rank> <what>", where what is "wrong
// <why>", "failed <how>" (the victim) or "good <checksum of the parameters>", and a line "process <what was left>".
int run_rank_process(const RankProcess& process);

}  // namespace failures
