// What one run of the drill does, drawn from its seed alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"

namespace drill {

enum class Attempt {
  build,    // the module, its wrappers, the optimizer
  train,    // forward, backward, step
  infer,    // one wrapper, nothing changed since the last call or everything
  overlap,  // two wrappers over the one module, each in a thread, while the mirrors are stale
  divide,   // scatter, work on side streams, gather, backward
  graph,    // autograd over several devices without an engine
};
const char* to_string(Attempt attempt);

struct Step {
  Attempt attempt;
  std::int64_t rows;  // of the batch
  Device source;      // where the batch is
  bool balanced;      // policy, of `divide`
  bool wants_input_gradient;
  bool reads_late;  // results are read after the optimizer's step
  bool on_side_stream;
};

struct Plan {
  std::uint64_t seed;
  bool with_fault;
  std::shared_ptr<Machine> machine;
  std::vector<Device> devices, others;  // of the two wrappers; one home
  Device output_device;
  bool balanced;  // policy of the wrappers
  bool peeks;     // replicas wait for their own results
  std::vector<Step> steps;
  FaultTime fault;

  std::string text() const;
  // Every device that the steps name, each once.
  std::vector<Device> used() const;
  // What is left of it without some devices. False: nothing.
  bool leave_out(const std::vector<Device>& lost);
};

Plan draw_plan(std::uint64_t seed, bool with_fault);

}  // namespace drill
