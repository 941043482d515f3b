// Replays a recording on a machine: when each call and each piece of work would begin and end there. Times are whole
// nanoseconds, and what happens at the same time happens in a fixed order, so equal inputs give equal results.
// docs/simulate.md says what is modelled and what is not.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/simulate/flows.h"
#include "lockstep/parallel/simulate/kernel_cost.h"
#include "lockstep/parallel/simulate/machine.h"
#include "lockstep/parallel/simulate/recording.h"

namespace lockstep::simulate {

struct Options {
  KernelSpeed speed = KernelSpeed::vendor;
  int ranks = 0;            // of every group, for recordings of one rank; 0: as recorded
  bool framework = false;   // kernels and steps cost a thread what a framework in another language takes
  bool keep_rates = false;  // for a trace: how the links' rates change
};

// Where time goes.
enum class Part : std::uint8_t { kernel, copy, collective, host, latency };
constexpr std::array kPartNames{"kernel", "copy", "collective", "host", "latency"};
using Parts = std::array<Nanoseconds, kPartNames.size()>;

// What one entry did. A node is 2 e for the call of entry e and 2 e + 1 for its work, -1 for none. The cause is what
// the beginning waited for last.
struct Step {
  Nanoseconds call_begin = 0, call_end = 0, work_begin = kNever, work_end = kNever;  // kNever: no work
  int call_cause = -1, work_cause = -1;
};

struct DeviceUse {
  Nanoseconds kernels = 0;  // at least one runs
  Nanoseconds moves = 0;    // at least one copy or collective is under way
  Nanoseconds exposed = 0;  // moves, and no kernel
};

struct Result {
  std::string machine, recording;    // names
  int steps = 0;                     // marks "step"
  Nanoseconds begin = 0, end = 0;    // of the last step; of the whole where fewer than two marks are
  Nanoseconds total = 0;             // of the whole recording
  Parts critical{};                  // of the time from begin to end
  std::map<int, DeviceUse> devices;  // from begin to end
  std::vector<std::string> link_names;
  std::vector<LinkUse> links;  // of the whole
  std::vector<LinkRate> rates;
  std::vector<std::int64_t> link_bytes_per_second;
  std::vector<Step> entries;  // thread after thread
  std::vector<int> order;     // of their calls

  Nanoseconds step() const { return end - begin; }
  Nanoseconds exposed() const;  // the largest of the devices
};

// Throws InvalidArgument for a recording that the machine cannot run (a device it lacks, collectives that do not match,
// more ranks than one where Options::ranks is given), and Error, with what waits for what, for one that never ends.
Result simulate(const Recording& recording, const Machine& machine, const Options& options = {});

Part part_of(const Recording& recording, const Entry& entry);  // of its work
Nanoseconds to_nanoseconds(double seconds);
std::string milliseconds(Nanoseconds time);  // "12.345"

}  // namespace lockstep::simulate
