// A sum of what lies on several devices, one section after the other. Private to the library.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Of one list of devices with a part of each section, of which only the first may be home. Made and used with the same
// streams current; what is enqueued later on these comes after the sum when end() has been called.
class SectionSum {
 public:
  virtual ~SectionSum() = default;
  // Writes ((parts[0] + parts[1]) + …) to `sum`, at home, with the bits of separate additions, some of it not before
  // the next call. Parts and sum are flat, contiguous, of one dtype and length; each part may be read and written once
  // its event has come (no events: once what was on its stream when this was made has run), `sum` in the order of
  // home's stream. What the parts hold afterwards is not specified. Does not block.
  virtual void add(const std::vector<Tensor>& parts, const Tensor& sum, const std::vector<const Event*>& ready) = 0;
  virtual void end() = 0;
  // In place of end() when something has failed: the host waits for what has been enqueued.
  virtual void settle() noexcept = 0;
};

// The sum of one section, by what has just been made.
void sum_one(SectionSum& by, const std::vector<Tensor>& parts, const Tensor& sum);

}  // namespace lockstep::detail
