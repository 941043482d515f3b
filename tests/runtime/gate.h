// A gate to hold work back, so that a test decides what is in flight.
#pragma once

#include <future>

#include "lockstep/runtime/deadline.h"

namespace backend_streams {

using namespace lockstep;

inline Deadline soon() { return Deadline::after(Milliseconds(60'000)); }

// Work waits at the gate until the test opens it, at the latest when the test is over.
class Gate {
 public:
  Gate() : opened_(promise_.get_future().share()) {}
  ~Gate() { open(); }
  void open() {
    if (!open_) promise_.set_value();
    open_ = true;
  }
  auto waits() const {
    return [opened = opened_] { opened.wait(); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_;
  bool open_ = false;
};

}  // namespace backend_streams
