// How ranks agree on who of them is left.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/deadline.h"

namespace lockstep {

class Store;

namespace detail {

// Where the ranks of a communicator meet when it need not work any more.
struct RollCall {
  std::shared_ptr<Store> store;
  std::string prefix;  // of keys that only this communicator has
  // The ranks that will not come: they have left, or their process has ended. May be called again and again.
  std::function<std::vector<int>()> gone = [] { return std::vector<int>(); };
};

// The ranks that are left, in order; the same list for all of them. `number`: which roll call of this communicator it
// is. Returns when all of `size` ranks but those that are gone or excluded by somebody have come, or after `timeout`.
// The first to see either decides, for all: nobody changes the list after that. Throws CommError when this rank is not
// in it, or when the store cannot be reached.
std::vector<int> agree_on_survivors(const RollCall& call, std::uint64_t number, int rank, int size,
                                    const std::vector<int>& exclude, Milliseconds timeout);

}  // namespace detail
}  // namespace lockstep
