// What fails where, among whom: the cells of the failure drill.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace failures {

enum class Place { before_init, in_init, between, collective, backward, checkpoint, destruction };
enum class Fault { exception, killed, stopped, wrong_collective, wrong_shape };
enum class Layout { threads, processes, nccl };

inline constexpr int kPlaces = 7, kFaults = 5, kLayouts = 3, kRanks = 4;

struct Cell {
  Place place;
  Fault fault;
  Layout layout;

  std::string name() const;            // "in-backward/killed/nccl"
  std::string impossible() const;      // why it cannot occur; "" where it can
  bool noticed_at_deadline() const;    // else at once
  bool may_be_noticed_before() const;  // the deadline: a process has gone of which another rank had connected
  int processes() const { return layout == Layout::threads ? 2 : kRanks; }
  int process_of(int rank) const { return rank * processes() / kRanks; }
  bool wrong_call() const { return fault == Fault::wrong_collective || fault == Fault::wrong_shape; }
  bool takes_process() const { return fault == Fault::killed || fault == Fault::stopped; }
  // Which rank fails.
  int victim(std::uint64_t seed) const;
  // It, and those whose process goes with it: an error may name any of them.
  std::vector<int> lost(std::uint64_t seed) const;
  std::vector<int> survivors(std::uint64_t seed) const;
};

std::vector<Cell> all_cells();
// Throws std::invalid_argument for what is no cell's name.
Cell cell_of(const std::string& name);

const char* text_of(Place place);
const char* text_of(Fault fault);
const char* text_of(Layout layout);

}  // namespace failures
