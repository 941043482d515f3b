// What a request to a pool of replicas ends in when it has no answer.
#pragma once

#include "lockstep/runtime/error.h"

namespace lockstep {

// The pool did not take the request, or dropped it for a later one: its queue is full, it is closed, or no replica is
// left.
class LOCKSTEP_API Refused : public Error {
 public:
  using Error::Error;
};

// The request was cancelled. Also what a call of a module throws, in the thread that computes, once nobody waits for
// its answer any more.
class LOCKSTEP_API Cancelled : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep
