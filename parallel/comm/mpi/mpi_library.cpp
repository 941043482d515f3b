#include "lockstep/parallel/comm/mpi/mpi_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep::mpi {
namespace {

constexpr const char* kFile = "liblockstep_mpi.so";

struct Loaded {
  const Table* table = nullptr;
  std::string error;  // empty: there is a table
};

// The folder of the file that this code is in: the shared library, or the program.
std::string own_folder() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&in_use), &found) == 0 || found.dli_fname == nullptr) return "";
  std::string path = found.dli_fname;
  if (path.starts_with('/')) return path.substr(0, path.rfind('/') + 1);
  // As somebody has called it, from wherever that was: a library that was opened, or else the program.
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), std::free);
  if (path.find('/') != path.npos && real) {
    path = real.get();
  } else {
    char link[4096] = {};
    const ssize_t bytes = ::readlink("/proc/self/exe", link, sizeof link - 1);
    path.assign(link, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  }
  return path.substr(0, path.rfind('/') + 1);
}

Loaded load() {
  std::string got;
  const std::string chosen(detail::environment("LOCKSTEP_MPI_LIBRARY"));
  std::vector<std::string> paths{chosen};
  if (chosen.empty()) {
    paths.clear();
    if (const std::string folder = own_folder(); !folder.empty())
      paths = {folder + kFile, cat(folder, "../lib/", kFile)};
    paths.emplace_back(kFile);
  }
  for (const std::string& path : paths) {
    // For all to see: MPI opens plug-ins of its own, which look for its symbols.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      const char* why = dlerror();
      got += cat(got.empty() ? " " : "; ", why ? why : path);
      continue;
    }
    const auto entry = reinterpret_cast<const Table* (*)()>(dlsym(library, kEntry));
    const Table* const table = entry ? entry() : nullptr;
    if (table && table->interface == kInterface) return {.table = table};
    got += cat(got.empty() ? " " : "; ", path,
               table ? cat(": interface ", table->interface, ", expected ", kInterface) : cat(": no ", kEntry));
    dlclose(library);
  }
  return {.error = "[mpi] expected the plug-in that talks to MPI (LOCKSTEP_MPI_LIBRARY names it), got" + got};
}

const Loaded& loaded() {
  static const Loaded& loaded = *new Loaded(load());  // never destroyed: its thread may outlive main
  return loaded;
}

}  // namespace

const Table& library() {
  if (!loaded().table) throw NotSupported(loaded().error);
  return *loaded().table;
}

const std::string& library_error() { return loaded().error; }

// These two functions are called alike in every MPI.
bool in_use() {
  using Ask = int (*)(int*);
  const auto initialised = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "MPI_Initialized"));
  const auto finalised = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "MPI_Finalized"));
  int is = 0, was = 0;
  return initialised && finalised && initialised(&is) == 0 && finalised(&was) == 0 && is && !was;
}

}  // namespace lockstep::mpi
