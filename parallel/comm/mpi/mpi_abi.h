// What the library asks of MPI, as a table that a plug-in fills: MPI's binary interfaces differ from one library to the
// next, so that a small file (mpi_plugin.cpp) is compiled against the one that is there, and opened when it is needed.
// Plain types only, and nothing else of the library: a plug-in fits every version with the same kInterface.
// Functions return MPI's code, 0 when all went well.
#pragma once

#include <cstdint>

namespace lockstep::mpi {

inline constexpr std::uint32_t kInterface = 1;
inline constexpr char kEntry[] = "lockstep_mpi_table";  // const Table* (*)()

using Request = std::uint64_t;  // 0: none, or done
struct Status {                 // of a message
  int source, bytes, cancelled;
};
enum ThreadLevel : int { kSingle, kFunneled, kSerialized, kMultiple };
inline constexpr int kAnySource = -1;

struct Table {
  std::uint32_t interface;  // kInterface of the plug-in; this stays in front
  const char* library;      // "Open MPI v4.1.4, …"
  int (*state)(int* initialised, int* finalised);
  int (*level)(int* level);  // as it was initialised
  int (*init)(int wanted, int* level);
  // Everything below is about the messages of a communicator of the library's own, a copy of MPI_COMM_WORLD.
  int (*open)(int* rank, int* size, int* most_tags);
  int (*isend)(const void* data, int bytes, int to, int tag, Request* request);
  int (*irecv)(void* data, int bytes, int from, int tag, Request* request);
  int (*test)(Request* request, int* done, Status* status);  // status: written when it is done
  int (*cancel)(Request* request);
  int (*finish)(Request* request);  // blocks until it is done
  int (*finalize)();
  void (*describe)(int code, char* text, int bytes);
};

}  // namespace lockstep::mpi
