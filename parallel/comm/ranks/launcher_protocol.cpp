#include "lockstep/parallel/comm/ranks/launcher_protocol.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/runtime/environment.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kMostText = 2000;
std::atomic<bool> reported{false};

void send(const std::string& what) {
  const std::string_view name = environment(kReports), rank = environment("LOCKSTEP_RANK");
  if (name.empty() || rank.empty()) return;
  const Endpoint launcher = abstract_endpoint(name);
  const Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval moment{.tv_sec = 1, .tv_usec = 0};  // the launcher may be stopped, or others report too
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &moment, sizeof moment);
  const std::string message = cat(rank, ' ', what);
  // Who is not there, or does not listen, goes by how the ranks end.
  (void)!::sendto(socket.get(), message.data(), message.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&launcher.address), launcher.bytes);
}

bool is(const char* variable, int number) { return environment(variable) == std::to_string(number); }

}  // namespace

std::vector<int> ranks_of_job(const RankInfo& ranks) {
  // Numbers alone say nothing: threads of this process may have the same.
  const bool discovered = ranks.source == "lockstep-run" || ranks.store_hosted;
  if (!discovered || !is("LOCKSTEP_RANK", ranks.rank) || !is("LOCKSTEP_WORLD_SIZE", ranks.size)) return {};
  std::vector<int> all(static_cast<std::size_t>(ranks.size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void report_failure(const std::vector<int>& job_ranks, const CommError& error) noexcept try {
  if (job_ranks.empty() || reported.exchange(true)) return;
  const bool known = error.rank >= 0 && error.rank < static_cast<int>(job_ranks.size());
  std::string text = std::string(error.what()).substr(0, kMostText);
  std::replace(text.begin(), text.end(), '\n', ' ');
  send(cat(known ? std::to_string(job_ranks[static_cast<std::size_t>(error.rank)]) : kUnknownRank, ' ', text));
} catch (...) {  // no memory: the launcher goes by how the ranks end
}

void report_recovery(const std::vector<int>& job_ranks) noexcept try {
  if (!job_ranks.empty() && reported.exchange(false)) send(kRecovered);
} catch (...) {
}

EndedRanks ended_ranks_of_job(Store& store, const RankInfo& ranks) {
  if (ranks_of_job(ranks).empty()) return nullptr;
  return [&store] { return store.ended_ranks(); };
}

std::string get_unless_ended(Store& store, const std::string& key, Deadline deadline, const EndedRanks& ended,
                             const std::function<bool(int rank)>& missing, const char* op) {
  while (true) {
    try {
      const Deadline next = Deadline::after(kPollInterval);
      return store.get(key, ended && next.time() < deadline.time() ? next : deadline);
    } catch (const TimeoutError&) {
      if (!ended || deadline.passed()) throw;
    }
    for (const EndedRank& each : ended()) {
      if (!missing(each.rank)) continue;
      // It may have come just before it ended.
      if (auto value = store.try_get(key)) return std::move(*value);
      throw CommError(each.rank, op, cat("rank ", each.rank, ' ', each.how, " before it joined"));
    }
  }
}

}  // namespace lockstep::detail
