// Random numbers that all ranks draw alike.
#pragma once

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/context.h"

namespace lockstep {

// While it lives, this thread draws the random numbers that rank 0's thread would have drawn, so that all ranks that
// make the same draws get the same numbers. Afterwards it goes on with its own, as many further on as were drawn. Every
// rank makes one at the same time: the constructor is an exchange between the hosts, and throws as those do; with one
// rank it does nothing.
class LOCKSTEP_API SameDraws {
 public:
  explicit SameDraws(Communicator& ranks) : SameDraws(&ranks) {}
  explicit SameDraws(Communicator* ranks);  // null: one rank
  SameDraws(const SameDraws&) = delete;
  SameDraws& operator=(const SameDraws&) = delete;
  ~SameDraws();

 private:
  std::uint64_t seed_, stream_, counter_, begin_;  // this thread's own, and where the draws begin
};

// Inside of SameDraws: draws in which this rank differs from the others.
class OwnDraws : public detail::FieldScope<&ThreadContext::random_stream, std::uint64_t> {
 public:
  explicit OwnDraws(int rank)
      : FieldScope(thread_context().random_stream + static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u) {}
};

}  // namespace lockstep
