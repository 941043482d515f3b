// How close kernels come to what their device can do: elementwise work and reductions against a plain copy within the
// device's memory, products and convolutions against the largest product of the run.
#include <CLI/CLI.hpp>

#include "bench.h"
#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/ops.h"
#include "lockstep/tensor/random.h"

namespace {

using namespace lockstep;

std::string device_text;
std::int64_t elements = 0, size = 0;
int runs = 9;

// Seconds that the device takes for one call of `body`, by events: the median of several runs after one that warms up.
template <class Body>
double device_seconds(Device device, Body body) {
  Stream& stream = current_stream(device);
  Backend& of_device = backend(device);
  const EventHandle begin = of_device.create_event(device.index(), true);
  const EventHandle end = of_device.create_event(device.index(), true);
  std::vector<double> times;
  for (int run = -2; run < runs; ++run) {
    of_device.record_event(begin, stream.handle());
    const auto host_begin = bench::Clock::now();
    body();
    of_device.record_event(end, stream.handle());
    synchronize(stream);
    const double host_seconds = bench::seconds_since(host_begin);
    // A synchronous device has done the work when the call returns.
    const double seconds = stream.synchronous() ? host_seconds : of_device.elapsed_milliseconds(begin, end) / 1e3;
    if (run >= 0) times.push_back(seconds);
  }
  of_device.destroy_event(begin);
  of_device.destroy_event(end);
  return bench::median(std::move(times));
}

struct Row {
  const char* name;
  double work;  // bytes or operations per call
  double seconds;
};

bench::Table table(std::string title, const char* unit, const std::vector<Row>& rows) {
  const double first = rows.front().work / rows.front().seconds;
  bench::Table result(std::move(title), {"kernel", unit, "of the first row", "microseconds"});
  for (const Row& row : rows) {
    const double rate = row.work / row.seconds;
    result.add({row.name, rate / 1e9, rate / first, row.seconds * 1e6});
  }
  return result;
}

void measure_memory(bench::Report& report, Device device) {
  const auto count = static_cast<double>(elements);
  const Tensor a = rand({elements}, {.device = device}), b = rand({elements}, {.device = device});
  const Tensor rows = a.reshape({elements / 1024, 1024});
  const Tensor target = a.clone();
  Stream& stream = current_stream(device);
  std::vector<Row> results;
  const CopyArgs copy{target.mutable_data<float>(), device, a.data(), device, static_cast<std::size_t>(elements) * 4};
  results.push_back({"copy", 8 * count, device_seconds(device, [&] { copy_bytes(copy, stream, stream); })});
  results.push_back({"add", 12 * count, device_seconds(device, [&] { add(a, b); })});
  results.push_back({"relu", 8 * count, device_seconds(device, [&] { relu(a); })});
  results.push_back({"gelu", 8 * count, device_seconds(device, [&] { gelu(a); })});
  results.push_back({"sum", 4 * count, device_seconds(device, [&] { sum(a); })});
  results.push_back({"sum of rows", 4 * count, device_seconds(device, [&] { sum(rows, {1}); })});
  results.push_back({"sum of columns", 4 * count, device_seconds(device, [&] { sum(rows, {0}); })});
  results.push_back({"softmax", 8 * count, device_seconds(device, [&] { softmax(rows, 1); })});
  report.add(table(cat("memory, ", elements, " f32 elements on ", device), "GB/s", results));
}

void measure_arithmetic(bench::Report& report, Device device) {
  const auto product = [&](DType dtype) {
    const Tensor a = rand({size, size}, {.device = device}).to(dtype), b = rand({size, size}, {.device = device}).to(dtype);
    return device_seconds(device, [&] { matmul(a, b); });
  };
  const double n = static_cast<double>(size), operations = 2 * n * n * n;
  std::vector<Row> results;
  results.push_back({"matmul f32", operations, product(DType::f32)});
  if (device.type() == DeviceType::cuda) {
    results.push_back({"matmul f16", operations, product(DType::f16)});
    results.push_back({"matmul bf16", operations, product(DType::bf16)});
  }
  constexpr std::int64_t kBatch = 16, kChannels = 64, kSide = 56;
  const Tensor x = rand({kBatch, kChannels, kSide, kSide}, {.device = device});
  const Tensor w = rand({kChannels, kChannels, 3, 3}, {.device = device});
  const double conv = 2.0 * kBatch * kChannels * kChannels * kSide * kSide * 9;
  results.push_back({"conv2d 3x3", conv, device_seconds(device, [&] { conv2d(x, w, {}, {.padding = {1, 1}}); })});
  report.add(table(cat("arithmetic, ", size, " x ", size, " on ", device), "GFLOP/s", results));
}

void run(bench::Report& report) {
  const Device device = device_text.empty() ? accelerators().front() : Device::parse(device_text);
  const bool gpu = device.type() == DeviceType::cuda;
  if (elements == 0) elements = std::int64_t{1} << (gpu ? 26 : 22);
  if (size == 0) size = gpu ? 4096 : 512;
  elements = std::max<std::int64_t>(elements / 1024, 1) * 1024;
  const NoGrad no_grad;
  measure_memory(report, device);
  measure_arithmetic(report, device);
}

void options(CLI::App& app) {
  app.add_option("--device", device_text, "Device; default: the first accelerator");
  app.add_option("--elements", elements, "Elements of the memory-bound kernels; default: 64Mi on a GPU, 4Mi on the host");
  app.add_option("--size", size, "Side of the matrices; default: 4096 on a GPU, 512 on the host");
  app.add_option("--runs", runs, "Runs of which the median is shown")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

const bench::Subcommand command("kernels", "Kernels against what the device's memory and arithmetic give", options, run);

}  // namespace
