// Catch2's runner, which takes long to compile and is compiled once.
#pragma once

namespace support {

// Runs the cases that the command line chooses; gives the exit status.
int run_tests(int argc, char** argv);

}  // namespace support
