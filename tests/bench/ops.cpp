// What a C++ user feels first: what one small operation costs, how far large ones are from plain loops and from calling
// oneDNN, how long a program takes to start. On one core, on the first host device.
#include "lockstep/tensor/ops/ops.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "subcommand.h"
#if defined(LOCKSTEP_BENCH_ONEDNN)
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#endif

namespace lockstep::ops_bench {

using bench::Samples;

std::int64_t megabytes = 64;
bool small_only = false;

constexpr int kCalls = 20'000;
constexpr int kChain = 1'000;

void measure_small(bench::Session& session, Device device) {
  bench::Table table("small", "small operations (microseconds)", {"operation", "microseconds", "at most"});
  // `parts`: how many operations a call makes.
  const auto add = [&](const char* name, double limit, int calls, double parts, auto body) {
    if (session.wants("small", name))
      table.add({name, session.nanoseconds_per_call(calls, body).times(1e-3 / parts), limit});
  };
  const TensorOptions options{.device = device};
  const Stream stream = current_stream(device);
  add("allocate from the cache and release", 0.2, kCalls, 1, [&] { release(allocate(stream, 64)); });
  const Tensor a = rand({16}, options), b = rand({16}, options);
  {
    const NoGrad no_grad;
    add("add, 16 floats", 0.3, kCalls, 1, [&] { lockstep::add(a, b); });
    const Linear linear = [&] {
      Linear layer(16, 16);
      layer.to(device);
      return layer;
    }();
    const Tensor row = rand({1, 16}, options);
    add("Linear 16 x 16, one row", 1, kCalls, 1, [&] { linear(row); });
  }
  Tensor leaf = rand({16}, options);
  leaf.set_requires_grad();
  add("add, 16 floats, recorded", 0.6, kCalls, 1, [&] { lockstep::add(leaf, b); });
  const Tensor ones = lockstep::ones({16}, options);
  add("chain of 1,000 adds, forward and backward, per add", 1, 5, kChain, [&] {
    Tensor x = leaf;
    for (int i = 0; i < kChain; ++i) x = x + b;
    x.backward(ones);
    leaf.zero_grad();
  });
  session.add(std::move(table));
}

// ---- against plain loops over the same operands

using Loop = void (*)(const float* a, const float* b, float* out, std::int64_t count);

void plain_copy(const float* __restrict a, const float*, float* __restrict out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] * 1.5f;
}
void plain_add(const float* __restrict a, const float* __restrict b, float* __restrict out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}
void plain_read(const float* __restrict a, const float*, float* __restrict out, std::int64_t count) {
  float sums[64] = {};
  for (std::int64_t i = 0; i + 64 <= count; i += 64)
    for (int lane = 0; lane < 64; ++lane) sums[lane] += a[i + lane];
  out[0] = 0;
  for (float sum : sums) out[0] += sum;
}

void measure_streams(bench::Session& session, Device device) {
  bench::Table table(
      "large", cat("f32 tensors of ", megabytes, " MB: speed as a share of a plain loop's over the same operands"),
      {"operation", "loop", "MB", "ms", "share", "at least"}, 2);
  const NoGrad no_grad;
  const TensorOptions options{.device = device};
  constexpr std::int64_t kRow = 1024;
  const std::int64_t rows = megabytes * (1 << 20) / 4 / kRow, count = rows * kRow;
  const Tensor a = rand({rows, kRow}, options), b = rand({rows, kRow}, options), out = empty({rows, kRow}, options);
  const Tensor images = a.reshape({rows / 16, 16, kRow});
  const Tensor channel = rand({16}, options), positive = rand({16}, options) + 0.5;
  const Tensor weight = rand({kRow}, options);
  const auto milliseconds = [](auto body) {
    const auto begin = bench::Clock::now();
    body();
    return bench::seconds_since(begin) * 1e3;
  };
  // By turns, so that what else the machine does hits both.
  const auto compare = [&](const char* name, const char* loop_name, Loop loop, double least, auto operation) {
    if (!session.wants("large", name)) return;
    std::vector<double> ours, shares;
    for (int run = -1; run < session.repetitions(); ++run) {
      const double loop_time =
          milliseconds([&] { loop(a.data<float>(), b.data<float>(), out.mutable_data<float>(), count); });
      const double time = milliseconds(operation);
      if (run < 0) continue;
      ours.push_back(time);
      shares.push_back(loop_time / time);
    }
    table.add({name, loop_name, megabytes, Samples(ours), Samples(shares), least});
  };
  compare("a + b", "add", plain_add, 0.85, [&] { add(a, b); });
  compare("a * b", "add", plain_add, 0.85, [&] { mul(a, b); });
  compare("a / b", "add", plain_add, 0.85, [&] { div(a, b); });
  compare("a * 1.5", "copy", plain_copy, 0.85, [&] { mul(a, 1.5); });
  compare("relu", "copy", plain_copy, 0.85, [&] { relu(a); });
  compare("sum", "read", plain_read, 0.85, [&] { sum(a); });
  compare("norm", "read", plain_read, 0.85, [&] { norm(a); });
  compare("sum of rows", "read", plain_read, 0.85, [&] { sum(a, {1}); });
  compare("sum of columns", "read", plain_read, 0.85, [&] { sum(a, {0}); });
  compare("layer_norm", "copy", plain_copy, 0.85, [&] { layer_norm(a, {kRow}, weight, weight); });
  compare("batch_norm, evaluation", "copy", plain_copy, 0.85, [&] {
    batch_norm(images, channel, channel, {.running_mean = channel, .running_var = positive, .training = false});
  });
  compare("exp", "copy", plain_copy, 0.4, [&] { exp(a); });
  compare("tanh", "copy", plain_copy, 0.4, [&] { tanh(a); });
  compare("gelu, exact", "copy", plain_copy, 0.4, [&] { gelu(a); });
  compare("gelu, tanh", "copy", plain_copy, 0.4, [&] { gelu(a, GeluForm::tanh); });
  compare("softmax", "copy", plain_copy, 0.4, [&] { softmax(a, 1); });
  session.add(std::move(table));
}

// ---- against oneDNN

void measure_products(bench::Session& session, Device device) {
#if defined(LOCKSTEP_BENCH_ONEDNN)
  bench::Table table("matmul", "matmul f32: speed as a share of oneDNN's, called directly on one thread",
                     {"side", "GFLOP/s", "share", "at least"});
  const NoGrad no_grad;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const std::int64_t side : {64, 256, 1024}) {
    if (!session.wants("matmul", cat("side ", side))) continue;
    const Tensor a = rand({side, side}, {.device = device}), b = rand({side, side}, {.device = device});
    const Tensor c = empty({side, side}, {.device = device});
    const auto direct = [&] {
      dnnl_sgemm('N', 'N', side, side, side, 1, a.data<float>(), side, b.data<float>(), side, 0,
                 c.mutable_data<float>(), side);
    };
    const int calls = side == 1024 ? 2 : side == 256 ? 50 : 2000;
    const auto nanoseconds = [&](auto body) {
      const auto begin = bench::Clock::now();
      for (int i = 0; i < calls; ++i) body();
      return bench::seconds_since(begin) * 1e9 / calls;
    };
    std::vector<double> ours, shares;
    for (int run = -1; run < session.repetitions(); ++run) {
      const double theirs = nanoseconds(direct), its = nanoseconds([&] { matmul(a, b); });
      if (run < 0) continue;
      ours.push_back(its);
      shares.push_back(theirs / its);
    }
    const double least = side == 64 ? 0.9 : 0.95;  // a quarter of a microsecond shows in the smallest
    table.add({side, Samples(ours).into(2.0 * static_cast<double>(side * side * side)), Samples(shares), least});
  }
  omp_set_num_threads(threads);
  session.add(std::move(table));
#else
  static_cast<void>(device);
  session.add_text("matmul f32: there is no oneDNN in this build to compare with");
#endif
}

// ---- start

// Milliseconds that this program takes to list the devices and end.
double list_devices_milliseconds() {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
  char name[] = "lockstep-bench", command[] = "devices";
  char* arguments[] = {name, command, nullptr};
  const auto begin = bench::Clock::now();
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0)
    throw Error("[ops] expected `lockstep-bench devices` to run");
  return bench::seconds_since(begin) * 1e3;
}

void measure_start(bench::Session& session) {
  bench::Table table("start", "start (milliseconds)", {"what", "milliseconds", "at most"});
  constexpr const char* kWhat = "a program that lists the devices";
  if (session.wants("start", kWhat)) {
    std::vector<double> times;
    for (int run = 0; run < session.repetitions(); ++run) times.push_back(list_devices_milliseconds());
    table.add({kWhat, Samples(times), 10.0});
  }
  session.add(std::move(table));
}

void run(bench::Session& session) {
  const Device device = Device::host(0);
  measure_small(session, device);
  if (small_only) return;
  measure_products(session, device);
  measure_streams(session, device);
  measure_start(session);
}

void options(CLI::App& app) {
  app.add_flag("--small", small_only, "The small operations alone");
  app.add_option("--megabytes", megabytes, "Size of the large tensors")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

const bench::Subcommand command("ops", "Small operations, large ones against plain loops, starting", options, run);

}  // namespace lockstep::ops_bench
