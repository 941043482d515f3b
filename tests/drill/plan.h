// What one run of the drill does, drawn from its seed alone.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lockstep/runtime/backend.h"

namespace drill {

using namespace lockstep;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
  int between(int least, int most) { return least + below(most - least + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }

 private:
  std::mt19937_64 random_;
};

enum class Attempt {
  build,    // the module, its wrappers, the optimizer
  train,    // forward, backward, step
  infer,    // one wrapper, nothing changed since the last call or everything
  overlap,  // two wrappers over the one module, each in a thread, while the mirrors are stale
  divide,   // scatter, work on side streams, gather, backward
  graph,    // autograd over several devices without an engine
};
const char* to_string(Attempt attempt);

struct Step {
  Attempt attempt;
  std::int64_t rows;  // of the batch
  Device source;      // where the batch is
  bool balanced;      // policy, of `divide`
  bool wants_input_gradient;
  bool reads_late;  // results are read after the optimizer's step
  bool on_side_stream;
};

enum class FaultKind { none, allocation, throws, delay, hang, deny, lose };
const char* to_string(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::none;
  std::size_t step = 0;  // when it is armed
  int count = 1;         // the count-th task or allocation from then on
  int from = 0, to = 1;  // of links
  bool from_empty_caches = false;
};

struct Plan {
  std::uint64_t seed;
  HostOptions host;
  std::vector<Device> devices, others;  // of the two wrappers; one home
  Device output_device;
  bool balanced;  // policy of the wrappers
  bool peeks;     // replicas wait for their own results
  std::vector<Step> steps;
  Fault fault;

  std::string text() const;
};

Plan draw_plan(std::uint64_t seed, bool with_fault);

}  // namespace drill
