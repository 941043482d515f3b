// Scaling that others have published, with what a prediction needs: docs/simulate_validation.md shows it.
#pragma once

#include <string>
#include <vector>

#include "training_step.h"

namespace lockstep::simulate::tests {

struct PublishedPoint {
  int devices;
  double efficiency;  // published: time on the fewest devices over time on these, the same work on each
};

struct PublishedRow {
  const char* name;     // with precision and batch of a device
  const char* machine;  // file
  const char* source;
  Model model;
  StepOptions step;
  std::vector<PublishedPoint> points;
  bool on_host = false;  // the parameters lie in the host's memory
  int base = 1;          // devices that the step's seconds are of; all steps share one batch where it is more
  const char* caution = "";
};

std::vector<PublishedRow> published_rows();

// The devices of a host differ in speed, and a step takes as long as the slowest: kDeviceSpread is published for GPUs
// of one node (stas00/ml-engineering, accelerator README: 5% and more). The largest of n even draws lies spread / 2
// times (n - 1) / (n + 1) above their mean.
constexpr double kDeviceSpread = 0.05;
double slowest_of(int devices);

// Links and collectives alone, or with devices that differ besides.
double predicted_efficiency(const PublishedRow& row, int devices, bool devices_differ);

// The rows of the document's table.
std::vector<std::string> validation_table();

}  // namespace lockstep::simulate::tests
