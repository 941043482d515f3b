#include "training_step.h"

#include <cmath>
#include <limits>
#include <utility>

namespace lockstep::simulate::tests {
namespace {

constexpr double kRate = 1e12;  // operations per second of the kernels with given times

class Maker {
 public:
  Maker(int threads, const char* name) {
    recording_.file = name;
    for (int i = 0; i < threads; ++i) recording_.threads.push_back({"rank" + std::to_string(i), {}});
  }
  int stream(int device, const char* label) {
    recording_.streams.push_back({device, label});
    return static_cast<int>(recording_.streams.size()) - 1;
  }
  void kernel(int thread, int on, double seconds) {
    if (seconds > 0) recording_.add_kernel(thread, on, {"given", "f32", 0, 0, std::llround(seconds * kRate), {}});
  }
  // What is on `later` from here on runs after what is on `earlier` now.
  void order(int thread, int earlier, int later) {
    Entry mark;
    mark.kind = Kind::record;
    mark.stream = earlier;
    Entry wait;
    wait.other = recording_.add(thread, mark);
    wait.kind = Kind::wait;
    wait.stream = later;
    recording_.add(thread, wait);
  }
  void all_reduce(int on, std::int64_t bytes, int ranks) {
    recording_.add_collective(0, on, {.op = "all_reduce", .group = "world", .bytes = bytes, .rank = 0, .size = ranks});
  }
  void copy(int thread, int on, int from, int to, std::int64_t bytes) {
    recording_.add_copy(thread, on, {from, to, bytes});
  }
  Recording take() { return std::move(recording_); }

 private:
  Recording recording_;
};

}  // namespace

Machine with_given_times(Machine machine) {
  for (GpuType& type : machine.gpu_types) {
    type.flops = {{"f32", kRate}};
    type.kernel_floor = type.kernel_gap = 0;
  }
  machine.host.kernel = 0;  // the time of a step on one device has it
  return machine;
}

Recording data_parallel_step(const Model& model, const Machine& machine, const StepOptions& options, int ranks) {
  Maker made(1, model.name.c_str());
  const int compute = made.stream(0, "compute"), reduce = made.stream(0, "reduce");
  const GpuType& gpu = machine.gpu_types.at(0);
  const double optimizer = options.optimizer_bytes * static_cast<double>(model.parameter_count()) /
                           (gpu.memory_bytes_per_second * gpu.memory_efficiency);
  const double second_of_flop = (options.seconds - optimizer) / 3 / model.flops();
  for (const Layer& layer : model.layers) made.kernel(0, compute, layer.flops * second_of_flop);

  std::int64_t waiting = 0,
               limit = options.overlap ? options.first_bucket_bytes : std::numeric_limits<std::int64_t>::max();
  const auto flush = [&] {
    if (waiting == 0 || ranks == 1) return;
    made.order(0, compute, reduce);
    made.all_reduce(reduce, waiting, ranks);
    waiting = 0;
    if (options.overlap) limit = options.bucket_bytes;
  };
  for (auto layer = model.layers.rbegin(); layer != model.layers.rend(); ++layer) {
    made.kernel(0, compute, 2 * layer->flops * second_of_flop);
    for (auto each = layer->parameters.rbegin(); each != layer->parameters.rend(); ++each) {
      waiting += *each * options.bytes_per_element;
      if (waiting >= limit) flush();
    }
  }
  flush();
  made.order(0, reduce, compute);
  made.kernel(0, compute, optimizer);
  return made.take();
}

Recording parameters_on_host_step(const Model& model, const StepOptions& options, int devices) {
  Maker made(devices, model.name.c_str());
  const double second_of_flop = options.seconds / 3 / model.flops();
  for (int device = 0; device < devices; ++device) {
    const int compute = made.stream(device, "compute"), in = made.stream(device, "in"),
              out = made.stream(device, "out");
    const auto bytes = [&](const Layer& layer) {
      std::int64_t sum = 0;
      for (const std::int64_t elements : layer.parameters) sum += elements * options.bytes_per_element;
      return sum;
    };
    for (const Layer& layer : model.layers) {
      made.copy(device, in, kHostMemory, device, bytes(layer));
      made.order(device, in, compute);
      made.kernel(device, compute, layer.flops * second_of_flop);
    }
    for (auto layer = model.layers.rbegin(); layer != model.layers.rend(); ++layer) {
      made.kernel(device, compute, 2 * layer->flops * second_of_flop);
      made.order(device, compute, out);
      made.copy(device, out, device, kHostMemory, bytes(*layer));
    }
  }
  return made.take();
}

double step_seconds(const Recording& recording, const Machine& machine) {
  return static_cast<double>(simulate::simulate(recording, machine).total) * 1e-9;
}

}  // namespace lockstep::simulate::tests
