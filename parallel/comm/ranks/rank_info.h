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
  bool store_hosted = false;           // the launcher serves the store; otherwise rank 0 does
  std::string source = "default";  // who said so: "arguments", "lockstep-run", "torchrun", "OpenMPI", "PMI", "Slurm"
};

struct RankArguments {
  std::optional<int> rank, size, local_rank, local_size;
  std::optional<std::string> store;
};

// Arguments that are given, else the environment of lockstep-run, torchrun, OpenMPI, PMI or Slurm, else one rank.
// Throws InvalidArgument for numbers that do not fit, for a source of which a part is missing, and for two sources that
// disagree about rank or size, naming both with their values.
//
// It is no disagreement when OpenMPI, PMI or Slurm started one process in all, or one per machine, and that process
// was the launcher that comes before it in the list; nor what Slurm says to a batch script, which is no task of a step.
//
// Where nobody says which ranks share a machine, all of them do. The store is at LOCKSTEP_STORE, else at MASTER_ADDR
// and MASTER_PORT; one port further where torchrun's own store has that one, and at 127.0.0.1 when all ranks are on
// one machine.
LOCKSTEP_API RankInfo discover_ranks(const RankArguments& arguments = {});

}  // namespace lockstep
