// What the command lines of the examples have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "lockstep/runtime/error.h"
#include "usage_error.h"

namespace example {

// False when --help was asked for, which is printed then.
inline bool parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(lockstep::cat(error.what(), " (--help lists the options)"));
  }
  return true;
}

// The exit status of a program: that of `run`, or 1 when something failed, 2 for a UsageError. What failed is one line
// on standard error.
template <class Run>
int run_program(const char* name, Run&& run) {
  const auto fail = [name](const std::exception& error, int status) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    std::fprintf(stderr, "%s: %s\n", name, line.c_str());
    return status;
  };
  try {
    return run();
  } catch (const UsageError& error) {
    return fail(error, 2);
  } catch (const std::exception& error) {
    try {
      std::rethrow_if_nested(error);
    } catch (const UsageError& cause) {  // of a rank that is a thread
      return fail(cause, 2);
    } catch (...) {
    }
    return fail(error, 1);
  }
}

}  // namespace example
