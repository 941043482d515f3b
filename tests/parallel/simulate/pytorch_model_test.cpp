// The models of PyTorch's schedules: what they take from a recorded step, and what they make of it.
#include "lockstep/parallel/simulate/pytorch_model.h"

#include <algorithm>
#include <map>
#include <string>

#include "lockstep/runtime/error.h"
#include "machines.h"
#include "support/catch.h"

using namespace lockstep;
using namespace lockstep::simulate;
using namespace lockstep::simulate::tests;
using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// Two products of a 1024 x 3072 and a 3072 x 2048 weight, a loss, their gradients, and SGD with momentum.
Recording trained(int steps = 2) {
  Recording made = empty(1);
  const auto product = [&](std::vector<std::int64_t> a, std::vector<std::int64_t> b, std::vector<std::int64_t> c) {
    made.add_kernel(0, 0, {.name = "matmul", .dtype = "f32", .bytes_written = 4 * c[0] * c[1], .shapes = {a, b, c}});
  };
  mark(made);
  for (int i = 0; i < steps; ++i) {
    made.add_copy(0, 0, {kHostMemory, 0, 8'000});
    product({64, 1024}, {1024, 3072}, {64, 3072});
    product({64, 3072}, {3072, 2048}, {64, 2048});
    made.add_kernel(0, 0, {.name = "cross_entropy", .dtype = "f32", .bytes_read = 9'000, .bytes_written = 4});
    made.add_kernel(0, 0, {.name = "cross_entropy_grad", .dtype = "f32"});
    product({3072, 64}, {64, 2048}, {3072, 2048});
    product({64, 2048}, {2048, 3072}, {64, 3072});
    product({3072, 64}, {64, 1024}, {3072, 1024});  // the gradient of the transposed weight
    const std::int64_t parameters = 36 * kMiB;
    made.add_kernel(0, 0,
                    {.name = "sgd", .dtype = "f32", .bytes_read = 3 * parameters, .bytes_written = 2 * parameters});
    mark(made);
  }
  return made;
}

TrainingStep step_of(const Recording& recording) {
  return find_training_step(recording, simulate::simulate(recording, ideal(1)));
}

std::vector<std::int64_t> bytes_of(const Recording& recording, const std::string& op) {
  std::vector<std::int64_t> bytes;
  for (const Collective& each : recording.collectives)
    if (each.op == op && each.rank == 0) bytes.push_back(each.bytes);
  return bytes;
}

}  // namespace

TEST_CASE("PyTorch's models: a recorded step is taken apart") {
  const TrainingStep step = step_of(trained());
  CHECK(step.forward.size() == 3);
  CHECK(step.backward.size() == 4);
  CHECK(step.optimizer.size() == 1);
  CHECK(step.parameter_bytes == 36 * kMiB);
  CHECK(step.gradient_bytes == std::vector<std::int64_t>{0, 24 * kMiB, 0, 12 * kMiB});
  CHECK(step.input_bytes == 8'000);
  CHECK(step.output_bytes == 9'000);

  Recording no_marks = empty(1);
  kernel(no_marks, 0);
  CHECK_THROWS_WITH(step_of(no_marks), Contains("expected two marks"));
  mark(no_marks);
  kernel(no_marks, 0);
  mark(no_marks);
  CHECK_THROWS_WITH(step_of(no_marks), Contains("expected a step with a forward, a backward and an optimizer"));
}

TEST_CASE("PyTorch's models: gradients come evenly where no shape tells whose they are") {
  Recording recording = trained();
  for (Kernel& kernel : recording.kernels) kernel.shapes.clear();
  const TrainingStep step = step_of(recording);
  CHECK(step.gradient_bytes == std::vector<std::int64_t>(4, 9 * kMiB));
}

TEST_CASE("PyTorch's models: DistributedDataParallel's buckets") {
  TrainingStep step = step_of(trained());
  step.backward.assign(80, {.name = "relu_grad", .dtype = "f32"});
  step.gradient_bytes.assign(80, kMiB / 2);
  const Recording made = pytorch_distributed(step, 4, 1);
  CHECK(bytes_of(made, "all_reduce") == std::vector<std::int64_t>{kMiB, 25 * kMiB, 14 * kMiB});
  Machine machine = ideal(4);
  const Result result = simulate::simulate(made, machine);
  CHECK(result.steps == 2);
  // The optimizer waits for the last bucket, and for all that is copied out of it.
  Nanoseconds all_reduced = 0, updated = 0;
  for (std::size_t e = 0; e < made.threads[0].entries.size(); ++e) {
    const Entry& entry = made.threads[0].entries[e];
    if (entry.kind == Kind::collective) all_reduced = std::max(all_reduced, result.entries[e].work_end);
    if (entry.kind == Kind::kernel && made.kernels[static_cast<std::size_t>(entry.detail)].name == "sgd")
      updated = result.entries[e].work_begin;
  }
  CHECK(updated > all_reduced);
  const Nanoseconds reduced = result.devices.at(0).moves;
  CHECK(result.devices.at(0).exposed > 0);
  CHECK(result.devices.at(0).exposed < reduced);
  CHECK(simulate::simulate(pytorch_distributed(step, 1, 1), machine).step() < result.step());
}

TEST_CASE("PyTorch's models: DataParallel sends all parameters out and all gradients home, in pieces of 10 MiB") {
  const TrainingStep step = step_of(trained());
  const Recording made = pytorch_data_parallel(step, 3, 1);
  const std::vector<std::int64_t> pieces{10 * kMiB, 10 * kMiB, 10 * kMiB, 6 * kMiB};
  CHECK(bytes_of(made, "broadcast") == pieces);
  CHECK(bytes_of(made, "reduce") == pieces);
  Machine machine = ideal(4);
  machine.host.framework_kernel = 100 * kMicro;
  const Result result = simulate::simulate(made, machine, {.framework = true});
  CHECK(result.devices.size() == 3);
  // Inputs, outputs and gradients of outputs leave and reach device 0.
  CHECK(result.links[1].bytes == 3 * 8'000 + 2 * 9'000);
  CHECK(result.links[0].bytes == 2 * 8'000 + 2 * 9'000);

  // Threads of Python take turns in the forward, those of autograd do not in the backward.
  std::map<std::string, std::vector<std::pair<Nanoseconds, Nanoseconds>>> calls;
  std::size_t e = 0;
  for (const RecordedThread& thread : made.threads)
    for (const Entry& entry : thread.entries) {
      const Step& done = result.entries[e++];
      if (entry.kind == Kind::kernel) calls[thread.name].emplace_back(done.call_begin, done.call_end);
    }
  const auto overlap = [&](const std::string& name) {
    auto& spans = calls.at(name);
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i)
      if (spans[i].first < spans[i - 1].second) return true;
    return false;
  };
  CHECK(calls.at("replica").size() == 9);
  CHECK_FALSE(overlap("replica"));
  CHECK(overlap("autograd"));
}
