// How close kernels come to what their device can do: elementwise work and reductions against a plain copy within the
// device's memory, products and convolutions against the largest product of the run.
#include <CLI/CLI.hpp>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "subcommand.h"

namespace lockstep::kernels_bench {

std::string device_text;
std::int64_t elements = 0, size = 0;

// Seconds that the device takes for one call of `body`, by events, after two runs that warm up.
template <class Body>
bench::Samples device_seconds(const bench::Session& session, Device device, Body body) {
  const Stream stream = current_stream(device);
  Backend& of_device = backend(device);
  const EventHandle begin = of_device.create_event(device.index(), true);
  const EventHandle end = of_device.create_event(device.index(), true);
  std::vector<double> times;
  for (int run = -2; run < session.repetitions(); ++run) {
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
  return bench::Samples(std::move(times));
}

struct Row {
  const char* name;
  double work;  // bytes or operations per call
  bench::Samples seconds;
};

bench::Table table(std::string id, std::string title, const char* unit, const std::vector<Row>& rows) {
  bench::Table result(std::move(id), std::move(title), {"kernel", "microseconds", unit, "of the first row"});
  for (const Row& row : rows) {
    const double rate = row.work / row.seconds.median();
    result.add({row.name, row.seconds.times(1e6), rate / 1e9, rate / (rows[0].work / rows[0].seconds.median())});
  }
  return result;
}

void measure_memory(bench::Session& session, Device device) {
  const auto count = static_cast<double>(elements);
  const Tensor a = rand({elements}, {.device = device}), b = rand({elements}, {.device = device});
  const Tensor rows = a.reshape({elements / 1024, 1024});
  const Tensor target = a.clone();
  const Stream stream = current_stream(device);
  std::vector<Row> results;
  const auto add = [&](const char* name, double work, auto body) {
    if (session.wants("memory", name)) results.push_back({name, work, device_seconds(session, device, body)});
  };
  const CopyArgs copy{target.mutable_data<float>(), device, a.data(), device, static_cast<std::size_t>(elements) * 4};
  add("copy", 8 * count, [&] { copy_bytes(copy, stream, stream); });
  add("add", 12 * count, [&] { lockstep::add(a, b); });
  add("relu", 8 * count, [&] { relu(a); });
  add("gelu", 8 * count, [&] { gelu(a); });
  add("sum", 4 * count, [&] { sum(a); });
  add("sum of rows", 4 * count, [&] { sum(rows, {1}); });
  add("sum of columns", 4 * count, [&] { sum(rows, {0}); });
  add("softmax", 8 * count, [&] { softmax(rows, 1); });
  session.add(table("memory", cat("memory, ", elements, " f32 elements on ", device), "GB/s", results));
}

void measure_arithmetic(bench::Session& session, Device device) {
  std::vector<Row> results;
  const auto add = [&](const char* name, double work, auto body) {
    if (session.wants("arithmetic", name)) results.push_back({name, work, device_seconds(session, device, body)});
  };
  const double n = static_cast<double>(size), operations = 2 * n * n * n;
  const auto product = [&](const char* name, DType dtype) {
    const Tensor a = rand({size, size}, {.device = device}).to(dtype),
                 b = rand({size, size}, {.device = device}).to(dtype);
    add(name, operations, [&] { matmul(a, b); });
  };
  product("matmul f32", DType::f32);
  if (device.type() == DeviceType::cuda) {
    product("matmul f16", DType::f16);
    product("matmul bf16", DType::bf16);
  }
  // As Linear multiplies: few rows, by a weight that lies the other way.
  constexpr std::int64_t kRows = 8;
  const auto linear = [&](const char* name, DType dtype) {
    const Tensor x = rand({kRows, size}, {.device = device}).to(dtype),
                 w = rand({size, size}, {.device = device}).to(dtype);
    add(name, operations / n * kRows, [&] { matmul(x, w.transpose(0, 1)); });
  };
  linear("linear f32, 8 rows", DType::f32);
  linear("linear f16, 8 rows", DType::f16);
  linear("linear bf16, 8 rows", DType::bf16);
  constexpr std::int64_t kBatch = 16, kChannels = 64, kSide = 56;
  const Tensor x = rand({kBatch, kChannels, kSide, kSide}, {.device = device});
  const Tensor w = rand({kChannels, kChannels, 3, 3}, {.device = device});
  const double conv = 2.0 * kBatch * kChannels * kChannels * kSide * kSide * 9;
  add("conv2d 3x3", conv, [&] { conv2d(x, w, {}, {.padding = {1, 1}}); });
  session.add(table("arithmetic", cat("arithmetic, ", size, " x ", size, " on ", device), "GFLOP/s", results));
}

void run(bench::Session& session) {
  const Device device = device_text.empty() ? accelerators().front() : Device::parse(device_text);
  const bool gpu = device.type() == DeviceType::cuda;
  if (elements == 0) elements = std::int64_t{1} << (gpu ? 26 : 22);
  if (size == 0) size = gpu ? 4096 : 512;
  elements = std::max<std::int64_t>(elements / 1024, 1) * 1024;
  const NoGrad no_grad;
  measure_memory(session, device);
  measure_arithmetic(session, device);
}

void options(CLI::App& app) {
  app.add_option("--device", device_text, "Device; default: the first accelerator");
  app.add_option("--elements", elements,
                 "Elements of the memory-bound kernels; default: 64Mi on a GPU, 4Mi on the host");
  app.add_option("--size", size, "Side of the matrices; default: 4096 on a GPU, 512 on the host");
}

const bench::Subcommand command("kernels", "Kernels against what the device's memory and arithmetic give", options,
                                run);

}  // namespace lockstep::kernels_bench
