// Ranks that have parts of a model, beside one device that has all of it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/tensor_parallel/parts.h"
#include "lockstep/tensor/nn/shard.h"
#include "parallel/ddp/support.h"

namespace parallel_test {

using Make = decltype(RunRanksOptions::make);

inline std::vector<std::unique_ptr<Communicator>> make_peers(std::span<const Device> devices, Milliseconds timeout) {
  return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
}
inline std::vector<std::unique_ptr<Communicator>> make_loopback(std::span<const Device> devices, Milliseconds timeout) {
  std::vector<std::unique_ptr<Communicator>> alone;
  alone.push_back(make_loopback_communicator(devices[0], timeout));
  return alone;
}

// Each way of meeting, and each number of ranks that is worth a try.
struct RankGroup {
  const char* name;
  int ranks;
  Make make;
};
inline std::vector<RankGroup> groups() {
  return {{"loopback", 1, make_loopback},
          {"shared memory", 2, {}},
          {"peers", 2, make_peers},
          {"peers", 3, make_peers},
          {"shared memory", 4, {}}};
}

// What a step of a module has made: by name, "output", "x.grad", and the gradient of each parameter, whole.
using Results = std::map<std::string, Doubles>;

inline double largest_difference(const Results& a, const Results& b) {
  if (a.size() != b.size()) return 1e300;
  double largest = 0;
  for (const auto& [name, of_a] : a) {
    const auto found = b.find(name);
    largest = std::max(largest, found == b.end() ? 1e300 : largest_difference(of_a, found->second));
  }
  return largest;
}

// The gradient of a parameter that a rank may have a part of, whole, on every rank.
inline Tensor whole_gradient(const Parameter& parameter, Communicator& ranks) {
  const Shard* shard = shard_of(parameter);
  const Tensor own = parameter.grad().contiguous();
  if (!shard || ranks.size() == 1) return own;
  std::vector<Tensor> parts;
  for (int r = 0; r < ranks.size(); ++r) {
    const Tensor part = r == ranks.rank() ? own.clone() : empty_like(own);
    ranks.broadcast(part, r);
    parts.push_back(part);
  }
  return shard->whole_of(parts);
}

}  // namespace parallel_test
