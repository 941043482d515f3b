// The options that all programs of benchmarks have, and how they end.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "lockstep/parallel/bench/session.h"

namespace lockstep::bench {

// Declares --json, --csv, --list, --filter, --repetitions, --min-time and --version. `settings` must outlive the
// parsing.
void declare(CLI::App& app, Settings& settings);

// Parses, then calls `work` with a session, and prints what it holds. Returns the exit code: 2 for a wrong command line
// or what does not exist, 1 for a failure.
int run_program(CLI::App& app, int argc, char** argv, const Settings& settings,
                const std::function<void(Session&)>& work);

}  // namespace lockstep::bench
