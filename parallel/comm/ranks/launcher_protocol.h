// What the library and lockstep-run say to each other about the ranks of a job. Private to both.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/ranks/rank_info.h"
#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {

// The environment variable that names the launcher's socket, in the abstract namespace, and what is sent there: one
// datagram "<rank> <blamed> <message>", or "<rank> well" when it has been overcome.
inline constexpr char kReports[] = "LOCKSTEP_REPORTS";
inline constexpr char kUnknownRank[] = "?";  // blamed: it is not known who
inline constexpr char kRecovered[] = "well";

// The ranks of a communicator by their numbers in the job of lockstep-run that this process is a rank of, when the
// communicator has all of them, as discover_ranks says; else nothing.
std::vector<int> ranks_of_job(const RankInfo& ranks);

// Tells lockstep-run, where it started this process, which rank a failure is about: its own, or another's. The first
// one counts, until it has been overcome. Never throws; waits a moment at most.
void report_failure(const std::vector<int>& job_ranks, const CommError& error) noexcept;
void report_recovery(const std::vector<int>& job_ranks) noexcept;

// Ranks that do not come any more.
using EndedRanks = std::function<std::vector<EndedRank>()>;
constexpr Milliseconds kPollInterval{200};  // how often somebody who waits for ranks asks

// Those of the job whose processes have ended, for a communicator of all its ranks; else null.
EndedRanks ended_ranks_of_job(Store& store, const RankInfo& ranks);

// store.get, but as soon as a rank of those for which `missing` holds has ended, and the key is still not there, it is
// a CommError that names it. TimeoutError at the deadline.
std::string get_unless_ended(Store& store, const std::string& key, Deadline deadline, const EndedRanks& ended,
                             const std::function<bool(int rank)>& missing, const char* op);

// What `make` makes, as a communicator of the job's ranks.
template <class Make>
auto make_in_job(const RankInfo& info, Make&& make) {
  const std::vector<int> ranks = ranks_of_job(info);
  try {
    auto made = make();
    made->set_failure_report({&report_failure, ranks, &report_recovery});
    report_recovery(ranks);
    return made;
  } catch (const CommError& error) {
    report_failure(ranks, error);
    throw;
  }
}

}  // namespace lockstep::detail
