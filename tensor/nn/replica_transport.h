// How the parameters of a replicated module reach its mirrors, and gradients home, where that is not by copies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Moves ranges of slabs between devices that are all there are: home, which comes first, and the mirrors. Called by one
// thread at a time (it locks what it needs itself). What it enqueues is on the current streams of the devices; it does
// not wait for devices.
class LOCKSTEP_API ReplicaTransport {
 public:
  ReplicaTransport() = default;
  ReplicaTransport(const ReplicaTransport&) = delete;
  ReplicaTransport& operator=(const ReplicaTransport&) = delete;
  virtual ~ReplicaTransport() = default;

  virtual const char* name() const = 0;  // as it is asked for
  virtual std::span<const Device> devices() const = 0;
  // How often it has failed. What it has moved before may be anything: a failure may be found when the call is over.
  virtual std::uint64_t failures() const { return 0; }

  // ranges[i][d] becomes ranges[i][0]: flat tensors of one dtype and length on devices()[d].
  virtual void broadcast(std::span<const std::vector<Tensor>> ranges) = 0;
  // `sum`, at home, becomes the sum of the parts, part d on devices()[d]; in an order of the transport's own.
  virtual void sum(const std::vector<Tensor>& parts, const Tensor& sum) = 0;
};

}  // namespace lockstep
