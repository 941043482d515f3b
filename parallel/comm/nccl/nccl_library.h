// The NCCL library, opened when it is first needed. Private to the library.
#pragma once

#include <string>

#include "lockstep/parallel/comm/nccl/nccl_abi.h"

namespace lockstep::nccl {

struct Library {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int size, UniqueId id, int rank, Config* config);
  Result (*comm_finalize)(Comm comm);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
  Result (*all_reduce)(const void* in, void* out, std::size_t count, DataType, Op, Comm, NativeStream);
  Result (*broadcast)(const void* in, void* out, std::size_t count, DataType, int root, Comm, NativeStream);
  Result (*reduce)(const void* in, void* out, std::size_t count, DataType, Op, int root, Comm, NativeStream);
  Result (*all_gather)(const void* in, void* out, std::size_t count, DataType, Comm, NativeStream);
  Result (*reduce_scatter)(const void* in, void* out, std::size_t count, DataType, Op, Comm, NativeStream);
  Result (*send)(const void* in, std::size_t count, DataType, int peer, Comm, NativeStream);
  Result (*recv)(void* out, std::size_t count, DataType, int peer, Comm, NativeStream);
  Result (*group_start)();
  Result (*group_end)();
};

// What LOCKSTEP_NCCL_LIBRARY names, else one that the program has linked, else libnccl.so.2 or libnccl.so.
// Throws NotSupported, listing what was tried, when there is none, or none of version 2.14 or later.
const Library& library();
// Why library() would throw; empty when it does not.
const std::string& library_error();
int library_version();  // 22809 for 2.28.9

}  // namespace lockstep::nccl
