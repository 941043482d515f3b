#include "lockstep/parallel/comm/factory/make_communicator.h"

#include "lockstep/parallel/comm/factory/backends.h"
#include "lockstep/parallel/comm/factory/communicator_choice.h"
#include "lockstep/parallel/comm/factory/rank_traits.h"
#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/parallel/comm/machine_id.h"
#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_version.h"
#include "lockstep/parallel/comm/ranks/launcher_protocol.h"
#include "lockstep/parallel/comm/recorded/recorded_communicator.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/log.h"

namespace lockstep {
namespace {

using detail::CommunicatorBackend;
using detail::RankTraits;

RankTraits describe_rank(const RankInfo& rank, Device device, const std::string& backend) {
  RankTraits traits{.machine = detail::machine_id(),
                    .process = detail::process_token(),
                    .kind = to_string(device.type()),
                    .backend = backend};
  // Not its ordinal: where every process sees one GPU alone, all of them are number 0.
  const std::string hardware = lockstep::backend(device).hardware(device.index());
  if (!hardware.empty()) traits.gpu = cat(traits.machine, '#', hardware);
  if (!hardware.empty() && detail::nccl_shares_gpus()) traits.shares_gpu = "1";
  for (const CommunicatorBackend& each : detail::communicator_backends()) {
    if (!each.why_not_here || !detail::may_be_chosen(each, traits.kind, backend)) continue;
    if (std::string why = each.why_not_here(rank); !why.empty()) traits.why_not[each.name] = std::move(why);
  }
  return traits;
}

std::vector<RankTraits> meet(Store& store, const RankInfo& rank, const RankTraits& mine, std::string& group,
                             Deadline deadline) {
  const detail::EndedRanks ended = detail::ended_ranks_of_job(store, rank);
  // Every rank counts the communicators of so many ranks that it has asked for. Those that are left of more ranks have
  // numbers of their own, however many had come to the others.
  const std::string of_size = cat("make_communicator/", rank.size);
  group = cat(of_size, '.', store.add(cat(of_size, "/asked/", rank.rank), 1));
  store.set(cat(group, "/rank/", rank.rank), detail::pack(mine));
  std::vector<RankTraits> ranks;
  for (int r = 0; r < rank.size; ++r) {
    try {
      const auto missing = [&](int other) {
        return other >= r && other < rank.size && !store.try_get(cat(group, "/rank/", other));
      };
      ranks.push_back(detail::unpack(
          detail::get_unless_ended(store, cat(group, "/rank/", r), deadline, ended, missing, "make_communicator")));
    } catch (const TimeoutError&) {
      throw CommError(r, "make_communicator", cat("rank ", r, " of ", rank.size, " did not come before the deadline"));
    }
  }
  return ranks;
}

Device default_device(const RankInfo& rank) {
  const std::vector<Device> devices = accelerators();
  LOCKSTEP_CHECK(!devices.empty(), "[make_communicator] expected a host or CUDA device, got none");
  return devices[static_cast<std::size_t>(rank.local_rank) % devices.size()];
}

// What the ranks say of themselves where they have no store to say it in: only backends that need none are left.
std::vector<RankTraits> ranks_without_store(const RankInfo& rank, const RankTraits& mine) {
  bool possible = false, asked_for = mine.backend.empty();
  std::string left;
  for (const CommunicatorBackend& each : detail::communicator_backends()) {
    if (each.needs_store) continue;
    const auto why_not = mine.why_not.find(each.name);
    const bool can = why_not == mine.why_not.end();
    possible = possible || (can && (!each.works_on || mine.kind == each.works_on));
    asked_for = asked_for || mine.backend == each.name;
    left += cat(left.empty() ? "" : "; ", each.name, each.works_on ? cat(", for ", each.works_on, " devices") : "",
                can ? "" : cat(": ", why_not->second));
  }
  LOCKSTEP_CHECK(possible, "[make_communicator] expected a store in which ", rank.size,
                 " ranks find each other (LOCKSTEP_STORE=host:port, or MASTER_ADDR and MASTER_PORT), got none, and "
                 "without one only this is left: ",
                 left);
  LOCKSTEP_CHECK(asked_for, "[make_communicator] expected a store for ", mine.backend, ", got none");
  std::vector<RankTraits> ranks(static_cast<std::size_t>(rank.size), mine);
  for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].machine = ranks[r].process = std::to_string(r);
  return ranks;
}

std::unique_ptr<Communicator> make_what_suits(const CommunicatorOptions& options) {
  const RankInfo& rank = options.rank;
  LOCKSTEP_CHECK(rank.size > 0 && rank.rank >= 0 && rank.rank < rank.size,
                 "[make_communicator] expected a rank below the number of ranks, got rank ", rank.rank, " of ",
                 rank.size);
  const Deadline deadline = Deadline::after(options.timeout);
  const Device device = options.device ? *options.device : default_device(rank);
  ordinal(device);  // throws for one that does not exist
  const std::string backend =
      !options.backend.empty() ? options.backend : std::string(detail::environment("LOCKSTEP_COMMUNICATOR"));
  if (detail::is_recorded(device))
    return rank.size == 1 ? make_loopback_communicator(device, options.timeout)
                          : detail::make_recorded_rank(rank.rank, rank.size, rank.local_size, device, options.timeout);
  std::shared_ptr<Store> store = options.store;
  if (!store && !rank.store.empty() && rank.size > 1) store = connect_store(rank, {.connect_timeout = options.timeout});
  std::vector<RankTraits> ranks{describe_rank(rank, device, backend)};
  std::string group = "make_communicator/alone";
  if (rank.size > 1 && !store) {
    ranks = ranks_without_store(rank, ranks[0]);
  } else if (rank.size > 1) {
    ranks = meet(*store, rank, ranks[0], group, deadline);
  } else if (!store) {
    store = make_local_store();
  }
  const detail::RankChoice choice = detail::choose(ranks);
  if (rank.rank == 0) log(LogLevel::info, cat("[make_communicator] ", choice.backend->name, ": ", choice.reason));
  return choice.backend->make({.store = store ? make_prefix_store(store, group) : nullptr,
                               .rank = rank,
                               .device = device,
                               .timeout = options.timeout});
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options) {
  return detail::make_in_job(options.rank, [&] { return make_what_suits(options); });
}

}  // namespace lockstep
