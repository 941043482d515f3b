// Copies on their way, which share the links that they pass. Each moves at its max-min fair rate: no flow could be
// faster without slowing one that is no faster than it (Bertsekas and Gallager, Data Networks, section 6.5.2). Rates
// change when a flow begins or ends. All arithmetic is on integers, so that equal inputs give equal times.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace lockstep::simulate {

using Nanoseconds = std::int64_t;
constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

struct LinkUse {
  std::int64_t bytes = 0;  // that have passed
  Nanoseconds busy = 0;    // with a flow at least
};

struct LinkRate {
  Nanoseconds time = 0;
  int link = 0;
  std::int64_t bytes_per_second = 0;  // of all flows, from then on
};

class Flows {
 public:
  // bytes_per_second of each link, above 0. With `keep_rates` every change of a link's rate is remembered.
  Flows(std::vector<std::int64_t> bytes_per_second, bool keep_rates);

  // `path`: numbers of links; one that stands there twice is passed twice. Not empty.
  void begin(int flow, const std::vector<int>& path, std::int64_t bytes, Nanoseconds now);
  // When the next flow ends; kNever without flows.
  Nanoseconds next_end();
  // Lets the time pass up to `now`, which is not beyond next_end(), and returns the flows that have ended, in the order
  // in which they began.
  std::vector<int> advance(Nanoseconds now);
  bool unsettled() const { return unsettled_; }  // flows have begun or ended since rates were last computed

  const std::vector<std::int64_t>& capacities() const { return capacity_; }
  const std::vector<LinkUse>& use() const { return use_; }
  const std::vector<LinkRate>& rates() const { return rates_; }

 private:
  // A byte is 1e9 units: what passes in a nanosecond at one byte a second is one.
  using Units = __int128;
  struct Flow {
    int number;
    std::vector<std::pair<int, int>> links;  // and how often
    std::int64_t bytes;
    Units left;
    std::int64_t rate = 0;
  };
  void share();
  void pass(Nanoseconds now);

  std::vector<std::int64_t> capacity_;
  bool keep_rates_, unsettled_ = false;
  Nanoseconds now_ = 0, next_end_ = kNever;
  std::vector<Flow> flows_;
  std::vector<LinkUse> use_;
  std::vector<std::int64_t> total_;  // rate of each link
  std::vector<LinkRate> rates_;
};

}  // namespace lockstep::simulate
