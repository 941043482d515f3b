// Benchmarks of one's own, reported as lockstep-bench reports its own: samples with minimum, percentiles and spread, as
// a table, JSON or CSV; --list, --filter, --repetitions, --min-time.
//
//   #include "lockstep/bench.h"
//   #include "lockstep/lockstep.h"
//
//   int main(int argc, char** argv) {
//     using namespace lockstep;
//     bench::Suite suite("my-bench", "What my network costs");
//     for (const std::int64_t n : {64, 256})
//       suite.add(cat("matmul, side ", n), [n](bench::Run& run) {
//         const Tensor a = randn({n, n}, {.device = run.device()}), b = randn({n, n}, {.device = run.device()});
//         run.work(2.0 * static_cast<double>(n * n * n), "FLOP");
//         run.measure([&] { matmul(a, b); });
//       });
//     return suite.main(argc, argv);
//   }
//
// In CMake: find_package(lockstep REQUIRED), and link lockstep::bench.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/bench/session.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep::bench {

// What a benchmark's function measures with.
class Run {
 public:
  // The device of --device; the first accelerator when none was named.
  Device device() const { return device_; }
  // What one call does, for a rate per second in its unit: bytes, FLOP, images.
  void work(double amount, std::string unit) {
    work_ = amount;
    unit_ = std::move(unit);
  }
  // Measures calls of `body`: a sample is the time until the device has done as many calls as take --min-time (50 ms
  // when not said), divided by their number. To be called once. Exceptions of `body` end the program.
  template <class Body>
  void measure(Body&& body) {
    measure_calls([&](std::int64_t count) {
      const auto begin = Clock::now();
      for (std::int64_t i = 0; i < count; ++i) body();
      synchronize(current_stream(device_));
      return seconds_since(begin);
    });
  }

 private:
  friend class Suite;
  Run(Session& session, Device device) : session_(session), device_(device) {}
  void measure_calls(const std::function<double(std::int64_t)>& run);

  Session& session_;
  Device device_;
  double work_ = 0;
  std::string unit_;
  Samples seconds_;  // of one call
};

// A program of benchmarks.
class Suite {
 public:
  Suite(std::string name, std::string description) : name_(std::move(name)), description_(std::move(description)) {}

  // Throws InvalidArgument for a name that is there already.
  void add(std::string name, std::function<void(Run&)> benchmark);

  // Reads the command line (--help says what it knows), measures, prints to standard output. Returns the exit code: 0,
  // 2 for a wrong command line and where a benchmark threw InvalidArgument or NotSupported, 1 for what else it threw.
  int main(int argc, char** argv);

 private:
  void measure(Session& session, Device device) const;
  std::string name_, description_;
  std::vector<std::pair<std::string, std::function<void(Run&)>>> benchmarks_;
};

}  // namespace lockstep::bench
