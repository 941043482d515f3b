// Ranks that are processes: forked by a program that never starts a thread, so that they may.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/store/store.h"
#include "parallel/comm/conformance.h"

namespace processes {

using namespace lockstep;

// A store in memory that the forked processes share. Whoever dies while using it leaves it as it was.
std::shared_ptr<Store> make_mapped_store();

// Calls `body(rank)` in `count` processes and returns what they return, by rank: "threw: " and the message for one that
// threw, "signal n" for one that was killed. One that stops itself goes on once all others have ended. All have ended,
// and been waited for, when it returns.
std::vector<std::string> fork_ranks(int count, const std::function<std::string(int)>& body);

// Open files and threads of the calling process.
std::size_t open_files();
std::size_t threads();

}  // namespace processes
