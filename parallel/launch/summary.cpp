#include "lockstep/parallel/launch/summary.h"

#include <nlohmann/json.hpp>

#include "lockstep/parallel/launch/times.h"

namespace lockstep::launch {
namespace {

using How = RankEnd::How;
using Json = nlohmann::ordered_json;

const char* name_of(How how) {
  switch (how) {
    case How::exited:
      return "exited";
    case How::killed:
      return "killed";
    case How::stopped:
      return "stopped";
    case How::lost:
      return "lost";
    default:
      return "cut";
  }
}

const char* part_of(const RankEnd& rank, int first) {
  if (rank.rank == first) return "first";
  if (rank.ended_well()) return "well";
  if (!rank.failed()) return "ended";
  return rank.follows() ? "follower" : "failed";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json rank_or_null(int rank) { return rank < 0 ? Json() : Json(rank); }

Json describe_rank(const Options& options, const RankEnd& rank, int first) {
  const bool signal = rank.how == How::killed || rank.how == How::stopped;
  return {{"rank", rank.rank},
          {"node", options.node_rank(rank.rank / options.ranks)},
          {"host", rank.host},
          {"process", rank.process > 0 ? Json(rank.process) : Json()},
          {"part", part_of(rank, first)},
          {"how", name_of(rank.how)},
          {"code", rank.how == How::exited ? Json(rank.number) : Json()},
          {"signal", signal ? Json(rank.number) : Json()},
          {"what", describe(rank)},
          {"time_ms", rank.order},
          {"because_of", rank.follows() ? rank_or_null(rank.blamed) : Json()},
          {"error", rank.ended_well() ? Json() : text_or_null(rank.error)},
          {"log", text_or_null(rank.log)}};
}

Json describe_round(const Options& options, const JobEnd& job) {
  const int first = first_failure(job.ranks);
  Json all = Json::array();
  for (const RankEnd& each : job.ranks) all.push_back(describe_rank(options, each, first));
  return {{"code", job.end.code},
          {"message", text_or_null(job.end.message)},
          {"first_failure", rank_or_null(first)},
          {"keep_going", options.keep_going},
          {"nodes", options.nodes},
          {"ranks_per_node", options.ranks},
          {"began_ms", job.began},
          {"ended_ms", job.ended},
          {"ranks", std::move(all)}};
}

}  // namespace

std::string job_json(const std::vector<Round>& rounds) {
  const Round& last = rounds.back();
  Json job = describe_round(last.options, last.job);
  if (last.options.restarts > 0) {
    job["round"] = last.options.round;
    job["restarts"] = last.options.restarts;
    Json all = Json::array();
    for (const Round& each : rounds) {
      all.push_back(describe_round(each.options, each.job));
      all.back()["round"] = each.options.round;
      all.back()["restarts_used"] = each.options.restarts_used;
    }
    job["rounds"] = std::move(all);
  }
  return job.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace lockstep::launch
