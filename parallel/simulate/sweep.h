// The same step on more and more devices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::simulate {

struct SweepRow {
  int devices = 0;
  Nanoseconds step = 0, exposed = 0;
  double efficiency = 1;     // the first row's step over this one's
  Part most = Part::kernel;  // of the critical path
};

// "devices=1..64" (powers of two from the first to the last, which is there too) or "devices=1,2,4,8". Ascending;
// throws InvalidArgument otherwise.
std::vector<int> parse_sweep(const std::string& text);

// A row for each number of devices, which `replay` is called with.
std::vector<SweepRow> sweep(const std::vector<int>& devices, const std::function<Result(int)>& replay);
// The recording of so many devices: {} in the path is their number.
std::string path_for(const std::string& path, int devices);

}  // namespace lockstep::simulate
