// Devices, tensors, modules and latches for the tests of the engine.
#pragma once

#include <condition_variable>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"
#include "support/tensors.h"

namespace parallel_test {

using namespace lockstep;
using Doubles = std::vector<double>;

using support::device_at;
using support::device_name;
using support::device_sets;
using support::devices_at;
using support::first_devices;
using support::message_of;
using support::missing;

// Whether gradients of replicas are summed where they are, since home reads the memory of all.
inline bool sums_in_place(Device home) {
  return properties(home).host_memory && properties(home).synchronous && !properties(home).checked;
}

// f64 values first, first + 1, … : distinct, and exact under + and * while they are small.
inline Tensor counting(const Shape& shape, Device device = Device::cpu(), double first = 1) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i);
  return from_data(values, shape, {.device = device});
}
inline Tensor tensor(const Doubles& values, const Shape& shape, Device device = Device::cpu()) {
  return from_data(values, shape, {.device = device});
}
// f64 values of no particular pattern in (-1, 1), the same for the same seed.
inline Tensor noise(const Shape& shape, std::uint64_t seed, Device device = Device::cpu()) {
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<double>(static_cast<std::int64_t>(state >> 11)) / static_cast<double>(1ll << 52) - 1;
  }
  return from_data(values, shape, {.device = device});
}
using support::values;
inline double largest_difference(const Doubles& a, const Doubles& b) {
  if (a.size() != b.size()) return 1e300;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}
inline double largest_difference(const Tensor& a, const Tensor& b) {
  const Doubles x = values(a), y = values(b);
  if (a.shape() != b.shape()) return 1e300;
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - y[i]));
  return largest;
}
inline std::vector<std::int64_t> sizes(const std::vector<Tensor>& pieces, std::int64_t dim = 0) {
  std::vector<std::int64_t> result;
  for (const Tensor& piece : pieces) result.push_back(piece.size(dim));
  return result;
}

// Collects what is logged while it lives, by any thread.
class CapturedLog {
 public:
  CapturedLog() : level_(log_level()) {
    set_log_level(LogLevel::warning);
    before_ = set_log_sink([this](LogLevel, std::string_view message) {
      const std::lock_guard lock(mutex_);
      messages.emplace_back(message);
      came_.notify_all();
    });
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  ~CapturedLog() {
    set_log_sink(std::move(before_));
    set_log_level(level_);
  }
  // What there is once there are so many, where another thread logs them.
  std::vector<std::string> await(std::size_t count) const {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return messages.size() >= count; });
    return messages;
  }
  std::vector<std::string> messages;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  LogLevel level_;
  LogSink before_;
};

// Threads wait until it is opened.
class Latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// In f64, from random numbers that are the same for the same seed.
template <class M>
M seeded(std::uint64_t seed) {
  const DefaultDType f64(DType::f64);
  manual_seed(seed);
  return M();
}

// x * weight, element by element: [.., n] with n weights.
struct Scale : Module<Scale> {
  Parameter weight;
  explicit Scale(Tensor w) : weight(w) {}
  explicit Scale(Doubles w) : weight(tensor(w, {static_cast<std::int64_t>(w.size())})) {}
  Tensor forward(const Tensor& x) const { return x * weight.on(x.device()); }
  void members(Members& m) override { m("weight", weight); }
};

// x W^T + b in f64.
struct Affine : Module<Affine> {
  Parameter weight, bias;
  Affine(int in, int out, std::uint64_t seed) : weight(noise({out, in}, seed)), bias(noise({out}, seed + 100)) {}
  Tensor forward(const Tensor& x) const { return linear(x, weight.on(x.device()), bias.on(x.device())); }
  void members(Members& m) override { m("weight", weight), m("bias", bias); }
};

struct Mlp : Module<Mlp> {
  Affine first{3, 5, 1}, second{5, 2, 2};
  Tensor forward(const Tensor& x) const { return second(tanh(first(x))); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

// Calls a function. For replicas that do something special.
template <class F>
struct Calling : Module<Calling<F>> {
  F function;
  Parameter weight{counting({2})};
  explicit Calling(F f) : function(std::move(f)) {}
  Tensor forward(const Tensor& x) const { return function(x, weight.on(x.device())); }
  void members(Members& m) override { m("weight", weight); }
};

}  // namespace parallel_test
