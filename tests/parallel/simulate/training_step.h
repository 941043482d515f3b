// Recordings of training steps, made from a model and the time that its step takes on one device.
#pragma once

#include "lockstep/parallel/simulate/simulation.h"
#include "models.h"

namespace lockstep::simulate::tests {

struct StepOptions {
  double seconds = 0;         // of the step on one device: an input, published
  int bytes_per_element = 4;  // of gradients
  bool overlap = true;        // buckets are reduced while the backward goes on; else all gradients at once behind it
  std::int64_t bucket_bytes = 25 << 20, first_bucket_bytes = 1 << 20;  // as in PyTorch
  double optimizer_bytes = 20;  // that the optimizer moves for each parameter: SGD with momentum
};

// A machine whose kernels take the times that recordings of this file give them.
Machine with_given_times(Machine machine);

// One rank's step of data parallelism with all-reduce, among `ranks`. A third of what the optimizer leaves of the time
// is the forward, the rest the backward; layers have shares by their operations.
Recording data_parallel_step(const Model& model, const Machine& machine, const StepOptions& options, int ranks);

// Each device's step where the parameters lie in the host's memory: it fetches them layer by layer, and brings its
// gradients back as they are ready. Their sum and the update, in the host's time, are not counted.
Recording parameters_on_host_step(const Model& model, const StepOptions& options, int devices);

// Seconds of a step that is one recording.
double step_seconds(const Recording& recording, const Machine& machine);

}  // namespace lockstep::simulate::tests
