// What a trace calls the work that goes to a stream.
#pragma once

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/trace/trace.h"

namespace lockstep::trace {

// The work that this thread enqueues on `stream` until the scope ends; on a synchronous stream, and on one of a CUDA
// device, the scope is its span.
class LOCKSTEP_API WorkScope {
 public:
  WorkScope(const Stream& stream, const Work& work);
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;
  ~WorkScope();

 private:
  Stream stream_;
  Token token_ = 0;
  Work before_;
};

}  // namespace lockstep::trace
