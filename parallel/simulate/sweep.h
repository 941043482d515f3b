// The same step on more and more devices.
#pragma once

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

// `path` with {} in it: the recording of so many devices, each time. Else one recording of one rank, whose groups are
// taken to be so large.
std::vector<SweepRow> sweep(const std::string& path, const Machine& machine, const std::vector<int>& devices,
                            Options options);
// The recording of so many devices: {} in the path is their number.
std::string path_for(const std::string& path, int devices);

}  // namespace lockstep::simulate
