// The command line of the benchmarks of collectives: the flags of nccl-tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/parallel/comm/collective.h"
#include "lockstep/runtime/deadline.h"

namespace CLI {
class App;
}

namespace lockstep::bench {

struct CollectiveOptions {
  std::string smallest = "32M", largest = "32M", step = "1M";
  double factor = 0;  // 0: by steps
  int iterations = 20, aggregate = 1, warmup = 1, check = 1;
  std::string reduction = "sum", dtype = "float", root = "0";
  int threads = 0, per_thread = 1;  // 0: as many as there are devices
  int parallel_init = 0, blocking = 0, cpu_time = 0, average = 1, timeout_seconds = 0;
  int cuda_graph = 0, stream_null = 0, local_register = 0;  // that there are not
  std::string devices, json_file;
  bool spoil = false;  // see CollectiveCase::spoil

  void declare(CLI::App& app);

  // One row of the table.
  struct Row {
    lockstep::DType dtype;
    std::string dtype_name;
    lockstep::RedOp reduction;
    std::string reduction_name;  // "none" where nothing is reduced
    int root;                    // -1 where there is none
    std::size_t bytes;           // asked for
  };
  // In the order of nccl-tests: by dtype, reduction, root and size. Throws InvalidArgument for values that do not fit
  // each other or the number of ranks, and NotSupported for what there is not.
  std::vector<Row> rows(lockstep::Collective::Kind kind, int ranks) const;
  std::vector<std::size_t> sizes() const;
  lockstep::Milliseconds timeout() const;
};

}  // namespace lockstep::bench
