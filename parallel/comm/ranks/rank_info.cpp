#include "lockstep/parallel/comm/ranks/rank_info.h"

#include <charconv>
#include <vector>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using detail::environment;

constexpr int kMostRanks = 1 << 20;

// What one source says.
struct Source {
  std::string name;
  int rank = 0, size = 1;
  std::optional<int> local_rank, local_size;

  std::string describe() const { return cat(name, " says rank ", rank, " of ", size); }
};

struct Names {
  const char *rank, *size, *local_rank, *local_size;
};

bool is_set(const char* name) { return !environment(name).empty(); }

int number(const char* name, int least, int most) { return detail::parse_count(name, environment(name), least, most); }

// Both or neither of two variables: true, false, or the error that names the missing one.
bool both(const std::string& source, const char* a, const char* b) {
  if (is_set(a) == is_set(b)) return is_set(a);
  const char* const there = is_set(a) ? a : b;
  const char* const missing = is_set(a) ? b : a;
  detail::fail<InvalidArgument>("[discover_ranks] expected ", missing, " along with ", there, "=", environment(there),
                                " of ", source, ", but it is not set");
}

// What all sources must fulfil.
Source checked(Source source) {
  LOCKSTEP_CHECK(source.size >= 1 && source.size <= kMostRanks && source.rank >= 0 && source.rank < source.size,
                 "[discover_ranks] expected a rank below the number of ranks (at most ", kMostRanks, "), but ",
                 source.describe());
  if (source.local_rank)
    LOCKSTEP_CHECK(*source.local_size >= 1 && *source.local_size <= source.size && *source.local_rank >= 0 &&
                       *source.local_rank < *source.local_size,
                   "[discover_ranks] expected a local rank below the number of local ranks, and no more of them than "
                   "there are ranks, but ",
                   source.describe(), ", and local rank ", *source.local_rank, " of ", *source.local_size);
  return source;
}

std::optional<Source> from_variables(const std::string& name, const Names& names) {
  if (!both(name, names.rank, names.size)) return std::nullopt;
  Source source{.name = name, .rank = number(names.rank, 0, kMostRanks), .size = number(names.size, 1, kMostRanks)};
  if (both(name, names.local_rank, names.local_size)) {
    source.local_rank = number(names.local_rank, 0, kMostRanks);
    source.local_size = number(names.local_size, 1, kMostRanks);
  }
  return checked(source);
}

// The `node`-th of the numbers in a text like "4(x2),3": 4, 4, 3.
int tasks_of_node(const char* name, int node) {
  const std::string_view text = environment(name);
  const char *at = text.data(), *const end = at + text.size();
  while (at != end) {
    int tasks = 0, nodes = 1;
    auto [stop, error] = std::from_chars(at, end, tasks);
    if (error != std::errc() || tasks < 0) break;
    if (std::string_view(stop, end).starts_with("(x")) {
      const auto repeat = std::from_chars(stop + 2, end, nodes);
      if (repeat.ec != std::errc() || repeat.ptr == end || *repeat.ptr != ')') break;
      stop = repeat.ptr + 1;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (stop == end || *stop != ',') break;
    at = stop + 1;
  }
  detail::fail<InvalidArgument>("[", name,
                                "] expected the tasks of each node, like \"4(x2),3\", with one for SLURM_NODEID=",
                                environment("SLURM_NODEID"), ", got \"", text, "\"");
}

std::optional<Source> from_slurm() {
  // A batch script has the variables of its job, but is no task: those are in steps.
  if (is_set("SLURM_JOB_ID") && !is_set("SLURM_STEP_ID")) return std::nullopt;
  const char* const size = is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  if (!both("Slurm", "SLURM_PROCID", size)) return std::nullopt;
  Source source{.name = "Slurm", .rank = number("SLURM_PROCID", 0, kMostRanks), .size = number(size, 1, kMostRanks)};
  if (is_set("SLURM_LOCALID")) {
    source.local_rank = number("SLURM_LOCALID", 0, kMostRanks);
    if (is_set("SLURM_STEP_TASKS_PER_NODE") && is_set("SLURM_NODEID")) {
      source.local_size = tasks_of_node("SLURM_STEP_TASKS_PER_NODE", number("SLURM_NODEID", 0, kMostRanks));
    } else if (both("Slurm", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")) {
      source.local_size = number("SLURM_NTASKS_PER_NODE", 1, kMostRanks);
    }
  }
  return checked(source);
}

std::optional<Source> from_arguments(const RankArguments& arguments) {
  const auto pair = [](const char* a, const char* b, const std::optional<int>& first,
                       const std::optional<int>& second) {
    LOCKSTEP_CHECK(first.has_value() == second.has_value(), "[discover_ranks] expected the argument ", first ? b : a,
                   " along with ", first ? a : b, "=", first ? *first : *second, ", got none");
  };
  pair("rank", "size", arguments.rank, arguments.size);
  pair("local_rank", "local_size", arguments.local_rank, arguments.local_size);
  if (!arguments.rank) {
    LOCKSTEP_CHECK(!arguments.local_rank,
                   "[discover_ranks] expected the arguments rank and size along with local_rank=",
                   *arguments.local_rank, ", got none");
    return std::nullopt;
  }
  return checked({.name = "arguments",
                  .rank = *arguments.rank,
                  .size = *arguments.size,
                  .local_rank = arguments.local_rank,
                  .local_size = arguments.local_size});
}

// Whether `outer` started the launcher `inner`, once in all or once per machine.
bool started(const Source& outer, const Source& inner) {
  if (inner.name == "arguments" || outer.name == "lockstep-run" || outer.name == "torchrun") return false;
  if (outer.size == 1) return true;
  return inner.local_size && inner.size % *inner.local_size == 0 && outer.size == inner.size / *inner.local_size &&
         outer.local_size.value_or(1) == 1;
}

std::string store_address(const RankInfo& ranks) {
  if (is_set("LOCKSTEP_STORE")) return std::string(environment("LOCKSTEP_STORE"));
  if (ranks.source == "default" || !both(ranks.source, "MASTER_ADDR", "MASTER_PORT")) return "";
  int port = number("MASTER_PORT", 1, 65535);
  if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True") port += port == 65535 ? -1 : 1;
  const bool one_machine = ranks.local_size == ranks.size;
  return to_string(detail::HostPort{one_machine ? "127.0.0.1" : std::string(environment("MASTER_ADDR")), port});
}

}  // namespace

RankInfo discover_ranks(const RankArguments& arguments) {
  std::vector<Source> sources;
  const auto add = [&](std::optional<Source> source) {
    if (source) sources.push_back(std::move(*source));
  };
  add(from_arguments(arguments));
  add(from_variables("lockstep-run",
                     {"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_SIZE"}));
  add(from_variables("torchrun", {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}));
  add(from_variables("OpenMPI", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE"}));
  add(from_variables("PMI", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}));
  add(from_slurm());

  RankInfo ranks;
  if (!sources.empty()) {
    Source chosen = sources.front();
    for (const Source& other : sources) {
      const bool same = other.rank == chosen.rank && other.size == chosen.size;
      LOCKSTEP_CHECK(same || started(other, chosen), "[discover_ranks] expected sources that agree, but ",
                     chosen.describe(), " and ", other.describe());
      if (same && !chosen.local_rank) {
        chosen.local_rank = other.local_rank;
        chosen.local_size = other.local_size;
      }
      if (same && other.name == "lockstep-run") ranks.store_hosted = !arguments.store;
    }
    ranks.rank = chosen.rank;
    ranks.size = chosen.size;
    ranks.local_rank = chosen.local_rank.value_or(chosen.rank);
    ranks.local_size = chosen.local_size.value_or(chosen.size);
    ranks.source = chosen.name;
  }
  ranks.store = arguments.store ? *arguments.store : store_address(ranks);
  LOCKSTEP_CHECK(!ranks.store_hosted || !ranks.store.empty(),
                 "[discover_ranks] expected LOCKSTEP_STORE along with LOCKSTEP_RANK=", ranks.rank,
                 " of lockstep-run, but it is not set");
  if (!ranks.store.empty()) detail::parse_host_port(arguments.store ? "store" : "LOCKSTEP_STORE", ranks.store);
  return ranks;
}

}  // namespace lockstep
