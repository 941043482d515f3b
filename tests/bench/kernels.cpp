// How close kernels come to what their device can do: elementwise work and reductions against a plain copy within the
// device's memory, products and convolutions against the largest product of the run.
#include <CLI/CLI.hpp>
#include <span>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
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

// The rows of one table.
class Rows {
 public:
  Rows(bench::Session& session, Device device, std::string id)
      : session_(session), device_(device), id_(std::move(id)) {}

  // work: bytes or operations of one call.
  template <class Body>
  void add(const std::string& name, double work, Body body) {
    if (session_.wants(id_, name)) rows_.push_back({name, work, device_seconds(session_, device_, body)});
  }
  // The gradients of `inputs`, where y has the gradient dy.
  void add_gradient(const std::string& name, double work, const Tensor& y, const std::vector<Tensor>& inputs,
                    const Tensor& dy) {
    add(name, work, [&] { grad(std::span(&y, 1), inputs, std::span(&dy, 1), {.retain_graph = true}); });
  }
  // Microseconds of the calling thread for one call, of many that the device is not waited for.
  template <class Body>
  void add_call(const std::string& name, Body body) {
    constexpr int kCalls = 50;  // a driver holds about a thousand launches before a call waits
    if (!session_.wants(id_, name)) return;
    std::vector<double> times;
    for (int run = -2; run < session_.repetitions(); ++run) {
      synchronize(device_);
      const auto begin = bench::Clock::now();
      for (int call = 0; call < kCalls; ++call) body();
      if (run >= 0) times.push_back(bench::seconds_since(begin) / kCalls);
    }
    synchronize(device_);
    rows_.push_back({name, 0, bench::Samples(std::move(times))});
  }

  bench::Table rates(std::string title, const char* unit) const {
    bench::Table result(id_, std::move(title), {"kernel", "microseconds", unit, "of the first row"});
    for (const Row& row : rows_) {
      const double rate = row.work / row.seconds.median();
      result.add({row.name, row.seconds.times(1e6), rate / 1e9, rate / (rows_[0].work / rows_[0].seconds.median())});
    }
    return result;
  }
  bench::Table times(std::string title) const {
    bench::Table result(id_, std::move(title), {"kernel", "microseconds"});
    for (const Row& row : rows_) result.add({row.name, row.seconds.times(1e6)});
    return result;
  }

 private:
  struct Row {
    std::string name;
    double work;
    bench::Samples seconds;
  };
  bench::Session& session_;
  Device device_;
  std::string id_;
  std::vector<Row> rows_;
};

Tensor wanting_gradient(const Tensor& x) {
  Tensor leaf = x.detach();
  leaf.set_requires_grad(true);
  return leaf;
}

// What moves elements of any dtype; f32 rows have no suffix.
void measure_elements(Rows& rows, Device device, DType dtype) {
  constexpr std::int64_t kLine = 1024;
  const std::int64_t words = std::max<std::int64_t>(elements / kLine / 2, 1);
  const std::string suffix = dtype == DType::f32 ? "" : cat(' ', dtype);
  const double bytes = static_cast<double>(elements) * static_cast<double>(size_of(dtype));
  const Tensor a = rand({elements}, {.device = device}).to(dtype), b = rand({elements}, {.device = device}).to(dtype);
  const Tensor lines = a.reshape({elements / kLine, kLine});
  const Tensor indices = randint(0, words, {elements / kLine}, {.dtype = DType::i64, .device = device});
  const Tensor classes = randint(0, kLine, {elements / kLine}, {.dtype = DType::i64, .device = device});
  const Tensor vocabulary = rand({words, kLine}, {.device = device}).to(dtype);
  const Tensor gain = wanting_gradient(ones({kLine}, {.dtype = dtype, .device = device}));
  const Tensor bias = wanting_gradient(zeros({kLine}, {.dtype = dtype, .device = device}));
  const Tensor x = wanting_gradient(lines);
  {
    const NoGrad no_grad;
    rows.add("add" + suffix, 3 * bytes, [&] { lockstep::add(a, b); });
    rows.add("relu" + suffix, 2 * bytes, [&] { relu(a); });
    rows.add("gelu" + suffix, 2 * bytes, [&] { gelu(a); });
    rows.add("dropout" + suffix, 2 * bytes, [&] { dropout(a, 0.1); });
    rows.add("sum" + suffix, bytes, [&] { sum(a); });
    rows.add("sum of rows" + suffix, bytes, [&] { sum(lines, {1}); });
    rows.add("sum of columns" + suffix, bytes, [&] { sum(lines, {0}); });
    rows.add("softmax" + suffix, 2 * bytes, [&] { softmax(lines, 1); });
    rows.add("layer norm" + suffix, 2 * bytes, [&] { layer_norm(lines, {kLine}, gain, bias); });
    rows.add("cross entropy" + suffix, bytes, [&] { cross_entropy(lines, classes); });
    rows.add("transpose" + suffix, 2 * bytes, [&] { lines.transpose(0, 1).contiguous(); });
    rows.add("embedding" + suffix, 2 * bytes, [&] { embedding(vocabulary, indices); });
    const TensorOptions options{.dtype = dtype, .device = device};
    rows.add("embedding gradient" + suffix, 2 * bytes, [&] {
      index_add(zeros({words, kLine}, options), 0, indices, lines);
    });
  }
  rows.add_gradient("softmax gradient" + suffix, 3 * bytes, softmax(x, 1), {x}, lines);
  rows.add_gradient("layer norm gradient" + suffix, 3 * bytes, layer_norm(x, {kLine}, gain, bias), {x, gain, bias},
                    lines);
}

void measure_memory(bench::Session& session, Device device) {
  const auto count = static_cast<double>(elements);
  const Tensor a = rand({elements}, {.device = device});
  const Tensor target = a.clone(), on_host = a.to(Device::cpu());
  const Stream stream = current_stream(device);
  Rows rows(session, device, "memory");
  const CopyArgs copy{target.mutable_data<float>(), device, a.data(), device, static_cast<std::size_t>(elements) * 4};
  rows.add("copy", 8 * count, [&] { copy_bytes(copy, stream, stream); });
  measure_elements(rows, device, DType::f32);
  measure_elements(rows, device, DType::bf16);
  const Tensor few = a.slice(0, 0, std::max<std::int64_t>(elements / 8, 1024));
  const Tensor few_lines = few.reshape({few.size(0) / 1024, 1024});
  const double sorted = 12.0 * static_cast<double>(few.size(0));  // read, and indices written
  {
    const NoGrad no_grad;
    rows.add("argsort of lines", sorted, [&] { argsort(few_lines, 1); });
    rows.add("argsort", sorted, [&] { argsort(few, 0); });
    rows.add("from the host", 4 * count, [&] { on_host.to(device); });
    rows.add("to the host", 4 * count, [&] { a.to(Device::cpu()); });
  }
  Parameter weight(a.clone());
  weight.set_grad(a.clone());
  Adam adam({weight}, {.lr = 1e-6});
  rows.add("Adam", 28 * count, [&] { adam.step(); });
  session.add(rows.rates(cat("memory, ", elements, " elements on ", device), "GB/s"));
}

void measure_convolutions(Rows& rows, Device device, DType dtype, MemoryFormat format, const std::string& suffix) {
  constexpr std::int64_t kBatch = 16, kChannels = 64, kSide = 56;
  const Tensor x = wanting_gradient(rand({kBatch, kChannels, kSide, kSide}, {.device = device}).to(dtype).to(format));
  const Tensor w = wanting_gradient(rand({kChannels, kChannels, 3, 3}, {.device = device}).to(dtype).to(format));
  const double work = 2.0 * kBatch * kChannels * kChannels * kSide * kSide * 9;
  const Tensor y = conv2d(x, w, {}, {.padding = {1, 1}});
  rows.add("conv2d 3x3" + suffix, work, [&] {
    const NoGrad no_grad;
    conv2d(x, w, {}, {.padding = {1, 1}});
  });
  rows.add_gradient("conv2d 3x3 gradient" + suffix, 2 * work, y, {x, w}, y.detach());
}

void measure_attention(Rows& rows, Device device, DType dtype) {
  constexpr std::int64_t kHeads = 16, kHeadSize = 64;
  const std::int64_t tokens = std::max<std::int64_t>(size / 2, 32);
  const std::string suffix = cat(' ', dtype);
  const auto part = [&](std::int64_t rows_of) {
    return wanting_gradient(rand({4, kHeads, rows_of, kHeadSize}, {.device = device}).to(dtype));
  };
  const Tensor q = part(tokens), k = part(tokens), v = part(tokens), one = part(1);
  const double work = 4.0 * 4 * kHeads * kHeadSize * static_cast<double>(tokens * tokens);
  for (const bool causal : {false, true}) {
    const std::string name = causal ? "causal attention" : "attention";
    const double part_of_it = causal ? 0.5 : 1;
    rows.add(name + suffix, part_of_it * work, [&] {
      const NoGrad no_grad;
      scaled_dot_product_attention(q, k, v, {.causal = causal});
    });
    const Tensor y = scaled_dot_product_attention(q, k, v, {.causal = causal});
    rows.add_gradient(name + " gradient" + suffix, 2.5 * part_of_it * work, y, {q, k, v}, y.detach());
  }
  rows.add("attention of one query" + suffix, work / static_cast<double>(tokens), [&] {
    const NoGrad no_grad;
    scaled_dot_product_attention(one, k, v);
  });
}

void measure_arithmetic(bench::Session& session, Device device) {
  const bool gpu = device.type() == DeviceType::cuda;
  Rows rows(session, device, "arithmetic");
  const double n = static_cast<double>(size), operations = 2 * n * n * n;
  {
    const NoGrad no_grad;
    const auto product = [&](const char* name, DType dtype) {
      const Tensor a = rand({size, size}, {.device = device}).to(dtype),
                   b = rand({size, size}, {.device = device}).to(dtype);
      rows.add(name, operations, [&] { matmul(a, b); });
    };
    product("matmul f32", DType::f32);
    if (gpu) {
      product("matmul f16", DType::f16);
      product("matmul bf16", DType::bf16);
    }
    // As Linear multiplies: few rows, by a weight that lies the other way.
    constexpr std::int64_t kRows = 8;
    const auto linear = [&](const char* name, DType dtype) {
      const Tensor x = rand({kRows, size}, {.device = device}).to(dtype),
                   w = rand({size, size}, {.device = device}).to(dtype);
      rows.add(name, operations / n * kRows, [&] { matmul(x, w.transpose(0, 1)); });
    };
    linear("linear f32, 8 rows", DType::f32);
    linear("linear f16, 8 rows", DType::f16);
    linear("linear bf16, 8 rows", DType::bf16);
  }
  measure_convolutions(rows, device, DType::f32, MemoryFormat::contiguous, "");
  if (gpu) {
    measure_convolutions(rows, device, DType::bf16, MemoryFormat::contiguous, " bf16");
    measure_convolutions(rows, device, DType::bf16, MemoryFormat::channels_last, " bf16, channels last");
  }
  measure_attention(rows, device, gpu ? DType::bf16 : DType::f32);
  session.add(rows.rates(cat("arithmetic, ", size, " x ", size, " on ", device), "GFLOP/s"));
}

// What a small operation costs its caller.
void measure_calls(bench::Session& session, Device device) {
  Rows rows(session, device, "calls");
  const Tensor x = rand({8, 8}, {.device = device}), image = rand({1, 4, 8, 8}, {.device = device});
  const Tensor window = rand({4, 4, 3, 3}, {.device = device});
  {
    const NoGrad no_grad;
    rows.add_call("call of add", [&] { lockstep::add(x, x); });
    rows.add_call("call of matmul", [&] { matmul(x, x); });
    rows.add_call("call of softmax", [&] { softmax(x, 1); });
    rows.add_call("call of conv2d", [&] { conv2d(image, window); });
  }
  const Tensor leaf = wanting_gradient(x);
  rows.add_call("call of add, recorded", [&] { lockstep::add(leaf, x); });
  session.add(rows.times(cat("calls of the host, on ", device)));
}

void run(bench::Session& session) {
  const Device device = device_text.empty() ? accelerators().front() : Device::parse(device_text);
  const bool gpu = device.type() == DeviceType::cuda;
  if (elements == 0) elements = std::int64_t{1} << (gpu ? 26 : 22);
  if (size == 0) size = gpu ? 4096 : 512;
  if (session.settings().list) elements = 1024, size = 32;  // names take no memory
  elements = std::max<std::int64_t>(elements / 1024, 1) * 1024;
  measure_memory(session, device);
  measure_arithmetic(session, device);
  measure_calls(session, device);
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
