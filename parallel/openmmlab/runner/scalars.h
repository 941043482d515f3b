// Lines to show and lines of JSON. Private to the library.
#pragma once

#include <string>

#include "lockstep/parallel/openmmlab/runner/log_buffer.h"

namespace lockstep::detail {

// Where a training is.
struct Place {
  const char* mode;  // "train", "val", "test"
  bool by_epoch;
  std::int64_t epoch, iter;      // the epoch counts from 1
  std::int64_t number, numbers;  // "[7/40]"
};

// "Epoch(train) [1][10/40]  lr: 1.0000e-02  eta: 0:00:12  loss: 0.1234"
std::string line_of(const Place& place, const Numbers& numbers);
// Takes lines of later iterations out of it, and one that is no JSON at its end: a training that is resumed writes them
// again.
void drop_after(const std::string& folder, std::int64_t iter);
// Appends one line to the file, made with its folder when there is none. Throws Error where the system cannot.
void append_json(const std::string& folder, const Place& place, const Numbers& numbers);

}  // namespace lockstep::detail
