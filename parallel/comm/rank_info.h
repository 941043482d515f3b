// Which rank this process is, among how many, and where they find each other.
#pragma once

#include <optional>
#include <string>

#include "lockstep/runtime/api.h"

namespace lockstep {

struct RankInfo {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this machine
  std::string store;                   // "host:port" of the TCP store; empty: there is none
  std::string source = "default";  // who said so: "arguments", "lockstep-run", "torchrun", "OpenMPI", "PMI", "Slurm"
};

struct RankArguments {
  std::optional<int> rank, size, local_rank, local_size;
  std::optional<std::string> store;
};

// Arguments that are given, else the environment of lockstep-run, torchrun, OpenMPI, PMI or Slurm, else one rank.
// Throws InvalidArgument for numbers that do not fit, for a source of which a part is missing, and for two sources that
// disagree about rank or size, naming both with their values.
LOCKSTEP_API RankInfo discover_ranks(const RankArguments& arguments = {});

}  // namespace lockstep
