// Runs in processes of their own: a run that crashes or hangs is a result like any other.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace drill {

struct Outcome {
  enum class End { finished, crashed, hung } end = End::finished;
  std::string text;  // what the process returned; for a crash, how it ended
};

// Calls `body(i)` for every i below `count`, each in a fresh process, `jobs` at a time, and `done(i, outcome)` here
// when it is over. A process that has not returned within `limit` is killed. The calling process must not have threads.
void run_processes(std::size_t count, int jobs, std::chrono::seconds limit,
                   const std::function<std::string(std::size_t)>& body,
                   const std::function<void(std::size_t, const Outcome&)>& done);

}  // namespace drill
