// Which Lockstep a program runs with: for logs, bug reports and records of benchmarks. The version of the headers that
// a program was compiled with is in "lockstep/version.h", as macros.
#pragma once

#include <string>
#include <vector>

#include "lockstep/runtime/api.h"

namespace lockstep {

struct BuildInfo {
  // Another library that this one uses, or could.
  struct Part {
    std::string name;        // "oneDNN", "CUDA runtime", "CUDA driver", "NCCL", "MPI"
    std::string built_with;  // the version of its headers; empty where it has no part in the build, or none is needed
    std::string found;       // the version that is there now; empty: none, or none that can be used
  };
  std::string version;             // of the library: "0.1.0"
  std::string commit;              // of the sources when they were configured; empty: not known
  std::string build_type;          // "Release"
  std::string compiler;            // "GNU 12.2.0"
  std::string instruction_set;     // what the whole library needs: "x86-64-v3"; empty: the compiler's default
  std::string cuda_architectures;  // "90"; empty: no CUDA
  std::string sanitizer;           // "thread", "address" or empty
  bool shared;                     // the library is a shared one
  std::vector<Part> parts;
};

// The version of the library that the program runs with. Any thread may call it, at any time.
LOCKSTEP_API const char* version();

// Asks the other libraries for their versions, and opens NCCL and the plug-in for MPI for that; starts nothing on a
// device. Any thread may call it.
LOCKSTEP_API BuildInfo build_info();

// One line: "Lockstep 0.1.0 (918324f), Release, GNU 12.2.0, x86-64-v3, static; oneDNN 2.6.3, …".
LOCKSTEP_API std::string to_string(const BuildInfo& info);

}  // namespace lockstep
