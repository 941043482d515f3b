// What the iterations of an interval have logged. Private to the library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/openmmlab/model/named_values.h"

namespace lockstep::detail {

using Numbers = std::vector<std::pair<std::string, double>>;

// A number, or a tensor with one element (which blocks until it is computed); nothing of other values.
std::optional<double> number_in(const Value& value);

class LogBuffer {
 public:
  // Numbers and tensors with one element; the rest is passed over. Does not block.
  void add(const LogVars& log);
  void add(const std::string& name, double value) { series(name).sum += value, ++series(name).count; }
  // The means over what was added since the last call, over all ranks, in the order in which names came first. Blocks;
  // every rank calls it.
  Numbers take_means(Communicator* communicator);

 private:
  struct Series {
    std::string name;
    double sum = 0;
    std::int64_t count = 0;
    std::vector<Tensor> waiting;  // kept as they are: asking for a number would block the host
  };
  Series& series(const std::string& name);
  std::vector<Series> all_;
};

}  // namespace lockstep::detail
