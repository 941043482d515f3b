#include "lockstep/parallel/simulate/pytorch_model.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::simulate {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kFirstBucket = kMiB, kBucket = 25 * kMiB, kCoalesced = 10 * kMiB;

bool is_optimizer(const std::string& name) { return name == "sgd" || name == "adam"; }
bool is_gradient(const std::string& name) { return name.find("_grad") != std::string::npos; }

Kernel copying(std::int64_t bytes) {
  return {.name = "copy", .dtype = "f32", .bytes_read = bytes, .bytes_written = bytes};
}

// Weights as products and convolutions of forward have them: the second operand, either way round.
std::set<std::vector<std::int64_t>> weights_of(const std::vector<Kernel>& forward) {
  std::set<std::vector<std::int64_t>> weights;
  for (const Kernel& kernel : forward) {
    if (kernel.name != "matmul" || kernel.shapes.size() < 3) continue;
    std::vector<std::int64_t> weight = kernel.shapes[1];
    weights.insert(weight);
    if (weight.size() >= 2) std::swap(weight[weight.size() - 1], weight[weight.size() - 2]);
    weights.insert(weight);
  }
  return weights;
}

void find_gradients(TrainingStep& step) {
  const auto weights = weights_of(step.forward);
  std::int64_t found = 0;
  for (const Kernel& kernel : step.backward) {
    const bool weight = kernel.name == "conv2d_grad_weight" ||
                        (kernel.name == "matmul" && !kernel.shapes.empty() && weights.count(kernel.shapes.back()) > 0);
    step.gradient_bytes.push_back(weight ? kernel.bytes_written : 0);
    found += step.gradient_bytes.back();
  }
  // Gradients in other dtypes than their parameters, and small ones that no kernel tells: scaled to the whole.
  const bool told = found * 4 >= step.parameter_bytes && found <= 2 * step.parameter_bytes;
  const std::int64_t whole = told ? found : static_cast<std::int64_t>(step.backward.size());
  std::int64_t so_far = 0, given = 0;
  for (std::int64_t& bytes : step.gradient_bytes) {
    so_far += told ? bytes : 1;
    const auto until = static_cast<std::int64_t>(static_cast<double>(step.parameter_bytes) *
                                                 (static_cast<double>(so_far) / static_cast<double>(whole)));
    bytes = until - given;
    given = until;
  }
}

EntryRef record(Recording& made, int thread, int stream) {
  return made.add(thread, {.kind = Kind::record, .stream = stream});
}
void wait(Recording& made, int thread, int stream, EntryRef event) {
  made.add(thread, {.kind = Kind::wait, .stream = stream, .other = event});
}
void mark(Recording& made) { made.add(0, {.kind = Kind::mark, .name = "step"}); }
void kernels(Recording& made, int thread, int stream, const std::vector<Kernel>& all) {
  for (const Kernel& kernel : all) made.add_kernel(thread, stream, kernel);
}

// The collective on every device's stream, in pieces.
void coalesced(Recording& made, const char* op, int devices, std::int64_t bytes) {
  for (std::int64_t begin = 0; begin < bytes; begin += kCoalesced) {
    const std::int64_t size = std::min(kCoalesced, bytes - begin);
    const bool reduces = std::string(op) == "reduce";
    for (int device = 0; device < (reduces ? devices : 1); ++device) made.add_kernel(0, device, copying(size));
    for (int device = 0; device < devices; ++device)
      made.add_collective(
          0, device,
          {.op = op, .dtype = "f32", .group = "devices", .bytes = size, .rank = device, .size = devices, .root = 0});
  }
}

}  // namespace

TrainingStep find_training_step(const Recording& recording, const Result& result) {
  std::vector<const Entry*> entries, ordered;
  for (const RecordedThread& thread : recording.threads)
    for (const Entry& entry : thread.entries) entries.push_back(&entry);
  std::vector<std::size_t> marks;
  for (const int e : result.order) {
    const Entry* const entry = entries[static_cast<std::size_t>(e)];
    if (entry->kind == Kind::mark && entry->name == "step") marks.push_back(ordered.size());
    ordered.push_back(entry);
  }
  LOCKSTEP_CHECK(recording.device_count() == 1, "[--as] expected a recording of one device, got one of ",
                 recording.device_count(), " (", recording.file, ")");
  LOCKSTEP_CHECK(marks.size() >= 2, "[--as] expected two marks of steps at least, got ", marks.size(), " in ",
                 recording.file);
  TrainingStep step;
  for (std::size_t i = marks[marks.size() - 2]; i < marks.back(); ++i) {
    const Entry* const entry = ordered[i];
    if (entry->kind == Kind::copy) {
      const Copy& copy = recording.copies[static_cast<std::size_t>(entry->detail)];
      if (copy.source == kHostMemory && step.forward.empty()) step.input_bytes += copy.bytes;
    }
    if (entry->kind != Kind::kernel) continue;
    const Kernel& kernel = recording.kernels[static_cast<std::size_t>(entry->detail)];
    if (is_optimizer(kernel.name)) {
      step.optimizer.push_back(kernel);
      step.parameter_bytes += kernel.bytes_read - kernel.bytes_written;
    } else {
      (step.backward.empty() && !is_gradient(kernel.name) ? step.forward : step.backward).push_back(kernel);
    }
  }
  LOCKSTEP_CHECK(!step.forward.empty() && !step.backward.empty() && step.parameter_bytes > 0,
                 "[--as] expected a step with a forward, a backward and an optimizer (sgd or adam), got ",
                 step.forward.size(), ", ", step.backward.size(), " and ", step.optimizer.size(),
                 " kernels of them in ", recording.file);
  step.output_bytes = step.forward.back().bytes_read;
  find_gradients(step);
  return step;
}

Recording pytorch_distributed(const TrainingStep& step, int ranks, int steps) {
  Recording made;
  made.file = "a model of PyTorch's DistributedDataParallel";
  made.streams = {{0, "compute"}, {0, "nccl"}};
  made.threads = {{"python", {}}};
  mark(made);
  for (int i = 0; i < steps; ++i) {
    if (step.input_bytes > 0) made.add_copy(0, 0, {kHostMemory, 0, step.input_bytes});
    kernels(made, 0, 0, step.forward);
    std::int64_t filled = 0, capacity = kFirstBucket;
    std::vector<std::pair<EntryRef, std::int64_t>> reduced;
    for (std::size_t k = 0; k < step.backward.size(); ++k) {
      made.add_kernel(0, 0, step.backward[k]);
      if (step.gradient_bytes[k] > 0) made.add_kernel(0, 0, copying(step.gradient_bytes[k]));
      filled += step.gradient_bytes[k];
      // A parameter is in one bucket: the one that it fills may become larger than the capacity.
      if (filled == 0 || (filled < capacity && k + 1 < step.backward.size())) continue;
      wait(made, 0, 1, record(made, 0, 0));
      made.add_collective(
          0, 1, {.op = "all_reduce", .dtype = "f32", .group = "world", .bytes = filled, .rank = 0, .size = ranks});
      reduced.emplace_back(record(made, 0, 1), filled);
      filled = 0;
      capacity = kBucket;
    }
    for (const auto& [event, bytes] : reduced) {
      wait(made, 0, 0, event);
      made.add_kernel(0, 0, copying(bytes));
    }
    kernels(made, 0, 0, step.optimizer);
    mark(made);
  }
  return made;
}

Recording pytorch_data_parallel(const TrainingStep& step, int devices, int steps) {
  Recording made;
  made.file = "a model of PyTorch's DataParallel";
  made.threads.push_back({"python", {}, true});
  for (int i = 0; i < devices; ++i) made.streams.push_back({i, "compute"});
  for (int i = 0; i < devices; ++i) made.threads.push_back({"replica", {}, true});
  for (int i = 0; i < devices; ++i) made.threads.push_back({"autograd", {}, false});
  const auto scatter = [&](std::int64_t bytes) {
    for (int device = 1; device < devices && bytes > 0; ++device) {
      made.add_copy(0, 0, {0, device, bytes});
      wait(made, 0, device, record(made, 0, 0));
    }
  };
  const auto gather = [&](std::int64_t bytes) {
    for (int device = 1; device < devices && bytes > 0; ++device) {
      made.add_copy(0, device, {device, 0, bytes});
      wait(made, 0, 0, record(made, 0, device));
    }
  };
  // `work` in a thread for each device, from `first` on; the main thread goes on after them.
  const auto in_threads = [&](int first, const std::vector<Kernel>& work) {
    const EntryRef begin = made.add(0, {.kind = Kind::point});
    for (int device = 0; device < devices; ++device) {
      made.add(first + device, {.kind = Kind::after, .other = begin});
      kernels(made, first + device, device, work);
      made.add(0, {.kind = Kind::after, .other = made.add(first + device, {.kind = Kind::point})});
    }
  };
  mark(made);
  for (int i = 0; i < steps; ++i) {
    if (step.input_bytes > 0) made.add_copy(0, 0, {kHostMemory, 0, step.input_bytes * devices});
    scatter(step.input_bytes);
    if (devices > 1) coalesced(made, "broadcast", devices, step.parameter_bytes);
    in_threads(1, step.forward);
    gather(step.output_bytes);
    scatter(step.output_bytes);  // their gradients
    in_threads(1 + devices, step.backward);
    if (devices > 1) coalesced(made, "reduce", devices, step.parameter_bytes);
    kernels(made, 0, 0, step.optimizer);
    mark(made);
  }
  return made;
}

}  // namespace lockstep::simulate
