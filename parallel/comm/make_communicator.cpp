#include "lockstep/parallel/comm/make_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "lockstep/parallel/comm/mpi_communicator.h"
#include "lockstep/parallel/comm/nccl_communicator.h"
#include "lockstep/parallel/comm/peer_communicator.h"
#include "lockstep/parallel/comm/shared_memory_communicator.h"
#include "lockstep/runtime/internal/environment.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/native_stream.h"

namespace lockstep {
namespace {

// What the choice depends on, of one rank. Texts without spaces, so that a line holds them.
struct Candidate {
  std::string machine, process, gpu, kind, backend;
  bool nccl = false, mpi = false;

  std::string line() const { return cat(machine, ' ', process, ' ', gpu, ' ', kind, ' ', backend, ' ', nccl, mpi); }
  static Candidate parse(const std::string& line) {
    std::vector<std::string> words(1);
    for (const char c : line)
      if (c == ' ')
        words.emplace_back();
      else
        words.back() += c;
    words.resize(6);
    return {words[0], words[1], words[2], words[3], words[4], words[5].starts_with('1'), words[5].ends_with('1')};
  }
};

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

// Processes with the same one can hand over memory: one kernel, and one network in which they find each other.
std::string machine_id() {
  char link[64] = {};
  const ssize_t bytes = ::readlink("/proc/self/ns/net", link, sizeof link - 1);
  return cat(first_line("/proc/sys/kernel/random/boot_id"), '/',
             std::string(link, bytes > 0 ? static_cast<std::size_t>(bytes) : 0));
}

// Whether MPI's launcher, or one that stands in for it, has started this process.
bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (!detail::environment(name).empty()) return true;
  return false;
}

Candidate describe_rank(Device device, const std::string& backend) {
  Candidate candidate{.machine = machine_id(),
                      .process = std::to_string(::getpid()),
                      .gpu = "-",
                      .kind = to_string(device.type()),
                      .backend = backend.empty() ? "-" : backend};
  if (device.type() == DeviceType::cuda) {
    candidate.gpu = cat(candidate.machine, '#', native_ordinal(device));
    candidate.nccl = why_no_nccl().empty();
  }
  candidate.mpi = mpi_available() && started_by_mpi();
  return candidate;
}

struct Choice {
  std::string backend, reason;
};

// The same on every rank: it depends on what all have said.
Choice choose(const std::vector<Candidate>& ranks) {
  const Candidate& first = ranks[0];
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    LOCKSTEP_CHECK(ranks[r].kind == first.kind, "[make_communicator] expected one kind of device on all ranks, got ",
                   first.kind, " on rank 0 and ", ranks[r].kind, " on rank ", r);
    LOCKSTEP_CHECK(ranks[r].backend == first.backend, "[make_communicator] expected one backend on all ranks, got ",
                   first.backend, " on rank 0 and ", ranks[r].backend, " on rank ", r);
  }
  std::set<std::string> machines, processes, gpus;
  bool nccl = true, mpi = true;
  for (const Candidate& rank : ranks) {
    machines.insert(rank.machine);
    processes.insert(cat(rank.machine, '#', rank.process));
    gpus.insert(rank.gpu);
    nccl &= rank.nccl;
    mpi &= rank.mpi;
  }
  const bool cuda = first.kind == "cuda", one_process = processes.size() == 1;
  const bool distinct = gpus.size() == ranks.size();
  const std::string where =
      cat(ranks.size(), " ranks in ", processes.size(), processes.size() == 1 ? " process" : " processes", " on ",
          machines.size(), machines.size() == 1 ? " machine" : " machines");
  // What each could do, and why not.
  const std::map<std::string, std::string> objections = {
      {"nccl", !cuda       ? "works on CUDA devices"
               : !distinct ? "needs a GPU for every rank, and some share one"
               : !nccl     ? "needs the NCCL library on every rank"
                           : ""},
      {"peer", one_process ? "" : "needs ranks that are threads of one process"},
      {"shared_memory", cuda                  ? "works on host devices"
                        : machines.size() > 1 ? "needs ranks on one machine"
                                              : ""},
      {"mpi", cuda   ? "works on host devices"
              : !mpi ? "needs ranks that mpirun has started, and a build with MPI"
                     : ""}};
  if (first.backend != "-") {
    const auto found = objections.find(first.backend);
    LOCKSTEP_CHECK(found != objections.end(),
                   "[make_communicator] expected nccl, peer, shared_memory or mpi (the option backend, or "
                   "LOCKSTEP_COMMUNICATOR), got '",
                   first.backend, "'");
    if (!found->second.empty())
      throw NotSupported(cat("[make_communicator] ", first.backend, " ", found->second, "; there are ", where, " with ",
                             first.kind, " devices"));
    return {first.backend, "asked for"};
  }
  const std::vector<std::string> preferred =
      cuda ? std::vector<std::string>{"nccl", "peer"} : std::vector<std::string>{"shared_memory", "mpi"};
  std::string reasons;
  for (const std::string& backend : preferred) {
    const std::string& objection = objections.at(backend);
    if (objection.empty()) return {backend, where};
    reasons += cat(reasons.empty() ? "" : "; ", backend, " ", objection);
  }
  throw NotSupported(
      cat("[make_communicator] no communicator suits ", where, " with ", first.kind, " devices: ", reasons));
}

std::vector<Candidate> meet(Store& store, const RankInfo& rank, const Candidate& mine, std::string& group,
                            Deadline deadline) {
  // Every rank comes once per communicator, so the arrivals number the communicators of a store.
  const std::int64_t round = (store.add("make_communicator/arrivals", 1) - 1) / rank.size;
  group = cat("make_communicator/", round);
  store.set(cat(group, "/rank/", rank.rank), mine.line());
  std::vector<Candidate> ranks;
  for (int r = 0; r < rank.size; ++r) {
    try {
      ranks.push_back(Candidate::parse(store.get(cat(group, "/rank/", r), deadline)));
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

}  // namespace

std::unique_ptr<Communicator> make_communicator(const CommunicatorOptions& options) {
  const RankInfo& rank = options.rank;
  LOCKSTEP_CHECK(rank.size > 0 && rank.rank >= 0 && rank.rank < rank.size,
                 "[make_communicator] expected a rank below the number of ranks, got rank ", rank.rank, " of ",
                 rank.size);
  const Deadline deadline = Deadline::after(options.timeout);
  const Device device = options.device ? *options.device : default_device(rank);
  const std::string backend =
      !options.backend.empty() ? options.backend : std::string(detail::environment("LOCKSTEP_COMMUNICATOR"));
  std::shared_ptr<Store> store = options.store;
  if (!store && !rank.store.empty() && rank.size > 1) store = connect_store(rank, {.connect_timeout = options.timeout});
  std::vector<Candidate> ranks{describe_rank(device, backend)};
  std::string group = "make_communicator/alone";
  if (rank.size > 1 && !store) {
    LOCKSTEP_CHECK(
        ranks[0].mpi, "[make_communicator] expected a store in which ", rank.size,
        " ranks find each other "
        "(LOCKSTEP_STORE=host:port, or MASTER_ADDR and MASTER_PORT), got none, and this build or job has no MPI");
    LOCKSTEP_CHECK(backend.empty() || backend == "mpi", "[make_communicator] expected a store for ", backend,
                   ", got none");
    ranks.assign(static_cast<std::size_t>(rank.size), ranks[0]);
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r].machine = ranks[r].process = std::to_string(r);
  } else if (rank.size > 1) {
    ranks = meet(*store, rank, ranks[0], group, deadline);
  } else if (!store) {
    store = make_local_store();
  }
  const Choice choice = choose(ranks);
  if (rank.rank == 0) log(LogLevel::info, cat("[make_communicator] ", choice.backend, ": ", choice.reason));
  const std::shared_ptr<Store> mine = store ? make_prefix_store(store, group) : nullptr;
  if (choice.backend == "nccl")
    return make_nccl_communicator(mine, rank.rank, rank.size, device, {.timeout = options.timeout});
  if (choice.backend == "mpi") return make_mpi_communicator(device, {.timeout = options.timeout});
  if (choice.backend == "peer")
    return make_peer_communicator(mine, rank.rank, rank.size, device, {.timeout = options.timeout});
  return make_process_communicator(mine, rank.rank, rank.size, device, {.timeout = options.timeout});
}

}  // namespace lockstep
