#include "cell.h"

#include <algorithm>
#include <stdexcept>

#include "machine.h"

namespace failures {
namespace {

constexpr const char* kPlaceNames[] = {"before-init", "in-init",       "between",       "in-collective",
                                       "in-backward", "in-checkpoint", "at-destruction"};
constexpr const char* kPlaceTexts[] = {"before init",     "in init",     "between collectives",
                                       "in a collective", "in backward", "in a checkpoint's write",
                                       "at destruction"};
constexpr const char* kFaultNames[] = {"exception", "killed", "stopped", "wrong-collective", "wrong-shape"};
constexpr const char* kFaultTexts[] = {"exception", "process killed", "process stopped", "wrong collective",
                                       "wrong shape"};
constexpr const char* kLayoutNames[] = {"threads", "processes", "nccl"};
constexpr const char* kLayoutTexts[] = {"two processes of two threads", "four processes", "NCCL, four processes"};

template <class Enum>
std::size_t index(Enum value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

const char* text_of(Place place) { return kPlaceTexts[index(place)]; }
const char* text_of(Fault fault) { return kFaultTexts[index(fault)]; }
const char* text_of(Layout layout) { return kLayoutTexts[index(layout)]; }

std::string Cell::name() const {
  return std::string(kPlaceNames[index(place)]) + '/' + kFaultNames[index(fault)] + '/' + kLayoutNames[index(layout)];
}

std::string Cell::impossible() const {
  if (place == Place::before_init && wrong_call()) return "nothing can be called before there is a communicator";
  if (layout == Layout::nccl) return why_no_fake_nccl();
  return "";
}

bool Cell::noticed_at_deadline() const {
  if (fault == Fault::stopped || place == Place::before_init) return true;
  if (place == Place::in_init) {
    if (fault == Fault::wrong_shape) return false;
    return fault != Fault::exception || layout != Layout::nccl;
  }
  return wrong_call() && layout == Layout::nccl;  // NCCL compares nothing
}

bool Cell::may_be_noticed_before() const {
  return place <= Place::in_init && fault == Fault::killed && layout == Layout::threads;
}

int Cell::victim(std::uint64_t seed) const {
  std::uint64_t state = seed;
  for (const std::size_t part : {index(place), index(fault), index(layout)}) {
    state = (state ^ (part + 1)) * 0x9E3779B97F4A7C15u;
    state ^= state >> 29;
  }
  // Rank 0 with another number of ranks is the group, and the others are wrong.
  const bool not_first = place == Place::in_init && fault == Fault::wrong_shape;
  return not_first ? 1 + static_cast<int>(state % (kRanks - 1)) : static_cast<int>(state % kRanks);
}

std::vector<int> Cell::lost(std::uint64_t seed) const {
  std::vector<int> ranks;
  for (int r = 0; r < kRanks; ++r)
    if (r == victim(seed) || (takes_process() && process_of(r) == process_of(victim(seed)))) ranks.push_back(r);
  return ranks;
}

std::vector<int> Cell::survivors(std::uint64_t seed) const {
  const std::vector<int> gone = lost(seed);
  std::vector<int> ranks;
  for (int r = 0; r < kRanks; ++r)
    if (std::find(gone.begin(), gone.end(), r) == gone.end()) ranks.push_back(r);
  return ranks;
}

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (int p = 0; p < kPlaces; ++p)
    for (int f = 0; f < kFaults; ++f)
      for (int l = 0; l < kLayouts; ++l)
        cells.push_back({static_cast<Place>(p), static_cast<Fault>(f), static_cast<Layout>(l)});
  return cells;
}

Cell cell_of(const std::string& name) {
  for (const Cell& cell : all_cells())
    if (cell.name() == name) return cell;
  throw std::invalid_argument("expected the name of a cell (--cells lists them), got " + name);
}

}  // namespace failures
