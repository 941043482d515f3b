// What tensor parallelism is made of: operations over the ranks of a communicator through which gradients flow.
//
// Every rank calls them, and their backwards, in the same order, on tensors of the same shape; outside of what is
// divided all ranks compute the same. They work on the current stream of the communicator's device, where x must be, as
// collectives do (communicator.h), and throw what those throw: a rank that fails is a CommError for the others. x may
// have any strides, and is never written. With one rank the result is x itself. The communicator must outlive the
// graph, and belongs to one thread: a graph that lies on one device is computed by the thread that calls backward.
#pragma once

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

// From what all ranks have alike into what is divided: x itself; its gradient is the sum of all ranks'.
LOCKSTEP_API Tensor copy_to_ranks(const Tensor& x, Communicator& ranks);
// Out of what is divided: the sum of all ranks' x, in the order of the ranks, the same bits on all; the gradient, which
// all have alike, goes to each.
LOCKSTEP_API Tensor sum_over_ranks(const Tensor& x, Communicator& ranks);
// This rank's part of the last dimension [.., size] -> [.., size / ranks]; the gradient is gathered from all.
// InvalidArgument where the size does not divide.
LOCKSTEP_API Tensor split_to_ranks(const Tensor& x, Communicator& ranks);
// The parts of all, side by side: [.., size] -> [.., size * ranks]; of the gradient, which all have alike, each rank
// gets its part.
LOCKSTEP_API Tensor gather_from_ranks(const Tensor& x, Communicator& ranks);

}  // namespace lockstep
