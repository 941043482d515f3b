// What ranks compare before they do something together. Private to the library.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"

namespace lockstep::detail {

// What every rank has brought, by rank: `text`, or, where it cannot do what is asked of it, a `problem` ("": none).
// Throws InvalidArgument, as "[op] …": on every rank for a problem of any, and where another rank does something else.
// Blocks.
std::vector<std::string> compare_notes(Communicator& communicator, const std::string& op, const std::string& text,
                                       const std::string& problem);

// The same; a text that is not that of rank 0 is an InvalidArgument on every rank too.
void agree(Communicator& communicator, const std::string& op, const std::string& text, const std::string& problem);

}  // namespace lockstep::detail
