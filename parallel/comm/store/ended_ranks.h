// Where a launcher that serves a store writes down how the processes of ranks have ended, and TcpStore reads it; and
// which round of a job that begins again the ranks are of. Private to the library and its launcher.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::detail {

// The environment variable with the round, from 0, of a job that may have several: each has a token of its own.
inline constexpr char kRound[] = "LOCKSTEP_ROUND";
// So many have ended; the n-th is there as "<rank> <how>", from 1.
inline constexpr char kEndedCount[] = "lockstep-run/ended";
inline std::string ended_key(std::int64_t n) { return std::string(kEndedCount) + '/' + std::to_string(n); }

}  // namespace lockstep::detail
