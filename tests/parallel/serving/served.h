// A module that is served, and that a test holds, fails or watches.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/parallel/serving/replica_pool.h"
#include "parallel/support.h"

namespace parallel_test {

// What the test does to the replicas, and sees of them.
struct Control {
  std::mutex mutex;
  std::condition_variable changed;
  int entered = 0, held = 0;          // calls of forward, and those that wait
  std::optional<Device> free;         // where calls do not wait
  bool holding = false;               // calls wait
  int failing_calls = 0;              // so many of the next ones throw DeviceError
  std::vector<Device> failing;        // there calls throw DeviceError
  std::vector<Shape> shapes;          // of the inputs, in order
  std::vector<Device> devices;        // where they were
  std::atomic<int> second_layers{0};  // calls of the second module inside

  void enter(const Tensor& x) {
    std::unique_lock lock(mutex);
    ++entered;
    shapes.push_back(x.shape());
    devices.push_back(x.device());
    ++held;
    changed.notify_all();
    changed.wait(lock, [&] { return !holding || free == x.device(); });
    --held;
    if (failing_calls > 0 || std::find(failing.begin(), failing.end(), x.device()) != failing.end()) {
      failing_calls = std::max(0, failing_calls - 1);
      throw DeviceError(x.device(), 7, "the device is gone");
    }
  }
  void hold(bool on = true) {
    const std::lock_guard lock(mutex);
    holding = on;
    changed.notify_all();
  }
  void fail_on(Device device) {
    const std::lock_guard lock(mutex);
    failing.push_back(device);
  }
  // The calls there go on, the others stay.
  void let_go(Device device) {
    const std::lock_guard lock(mutex);
    free = device;
    changed.notify_all();
  }
  // Waits until so many calls wait.
  void await_held(int count) {
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return held >= count; }));
  }
  std::vector<std::int64_t> batches() {
    const std::lock_guard lock(mutex);
    std::vector<std::int64_t> sizes;
    for (const Shape& shape : shapes) sizes.push_back(shape[0]);
    return sizes;
  }
};

// Rows times a weight. A row that begins with a negative number is refused.
struct Second : Module<Second> {
  Parameter weight{tensor({1, 10}, {2}), false};
  std::shared_ptr<Control> control;
  explicit Second(std::shared_ptr<Control> of) : control(std::move(of)) {}
  Tensor forward(const Tensor& x) const {
    ++control->second_layers;
    return x * weight.on(x.device());
  }
  void members(Members& m) override { m("weight", weight); }
};
struct Served : Module<Served> {
  std::shared_ptr<Control> control = std::make_shared<Control>();
  Second second{control};
  Tensor forward(const Tensor& x) const {
    control->enter(x);
    for (const double value : x.narrow(1, 0, 1).to_vector<double>())
      if (value < 0) throw std::runtime_error("a row begins with " + std::to_string(value));
    return second(x);
  }
  void members(Members& m) override { m("second", second); }
};

inline Tensor row(double first) { return tensor({first, first + 1}, {1, 2}); }
inline Doubles answer_to(double first) { return {first, 10 * (first + 1)}; }

// Until the pool says so; a test that waits for ever fails at the test's time limit.
template <class Pool, class F>
void await(const Pool& pool, F&& condition) {
  while (!condition(pool.stats())) std::this_thread::sleep_for(Milliseconds(1));
}

}  // namespace parallel_test
