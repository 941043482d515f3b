// What the ranks of a DistributedDataParallel must agree on before they reduce anything. Private to the library.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep::detail {

// Every rank calls it, once, and says its options, its model (a line for each member in `listing`) and whether it has a
// `problem` ("": none). One exchange, also without init_sync, which leaves out the model alone. Throws InvalidArgument,
// on every rank, for a problem of any, and for the first option or line that differs from rank 0's, with both. Returns
// the limit of buckets but the first in bytes of gradients, where it is kAutoBucketCap rank 0's choice. Blocks.
std::size_t agree_to_wrap(Communicator& communicator, const DistributedDataParallelOptions& options,
                          const std::vector<NamedParameter>& parameters, const std::string& listing,
                          const std::string& problem);

// The first line in which two texts differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b);

}  // namespace lockstep::detail
