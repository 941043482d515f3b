// liblockstep_mpi.so: all of the library that knows mpi.h. Compiled against the MPI that is there, for example with
//   mpicxx -std=c++20 -shared -fPIC -I<include> mpi_plugin.cpp -o liblockstep_mpi.so
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>

#include "lockstep/parallel/comm/mpi/mpi_abi.h"

namespace {

using lockstep::mpi::Request;
using lockstep::mpi::Status;

static_assert(sizeof(MPI_Request) <= sizeof(Request) && MPI_SUCCESS == 0);

MPI_Comm world = MPI_COMM_NULL;
char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};

// No MPI has a request whose bits are all zero.
MPI_Request native(Request request) {
  MPI_Request own = MPI_REQUEST_NULL;
  if (request != 0) std::memcpy(&own, &request, sizeof own);  // NOLINT(bugprone-sizeof-expression): some are pointers
  return own;
}
void keep(Request* request, const MPI_Request& own) {
  *request = 0;
  if (own != MPI_REQUEST_NULL) std::memcpy(request, &own, sizeof own);  // NOLINT(bugprone-sizeof-expression)
}
// Calls MPI's function with the request as MPI has it.
template <class Call>
int with(Request* request, const Call& call) {
  MPI_Request own = native(*request);
  const int code = call(&own);
  keep(request, own);
  return code;
}

int state(int* initialised, int* finalised) {
  const int code = MPI_Initialized(initialised);
  return code != MPI_SUCCESS ? code : MPI_Finalized(finalised);
}

int level_of(int mpi) {
  return mpi >= MPI_THREAD_MULTIPLE     ? lockstep::mpi::kMultiple
         : mpi >= MPI_THREAD_SERIALIZED ? lockstep::mpi::kSerialized
         : mpi >= MPI_THREAD_FUNNELED   ? lockstep::mpi::kFunneled
                                        : lockstep::mpi::kSingle;
}
int level(int* out) {
  int mpi = MPI_THREAD_SINGLE;
  const int code = MPI_Query_thread(&mpi);
  *out = level_of(mpi);
  return code;
}
int init(int wanted, int* out) {
  const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
  int mpi = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, levels[wanted], &mpi);
  *out = level_of(mpi);
  return code;
}

int open(int* rank, int* size, int* most_tags) {
  if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &world); code != MPI_SUCCESS) return code;
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world, rank);
  MPI_Comm_size(world, size);
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(world, MPI_TAG_UB, &value, &found);
  *most_tags = found ? *static_cast<int*>(value) : 32767;
  return MPI_SUCCESS;
}

int isend(const void* data, int bytes, int to, int tag, Request* request) {
  return with(request, [&](MPI_Request* own) { return MPI_Isend(data, bytes, MPI_BYTE, to, tag, world, own); });
}
int irecv(void* data, int bytes, int from, int tag, Request* request) {
  const int source = from == lockstep::mpi::kAnySource ? MPI_ANY_SOURCE : from;
  return with(request, [&](MPI_Request* own) { return MPI_Irecv(data, bytes, MPI_BYTE, source, tag, world, own); });
}
int test(Request* request, int* done, Status* status) {
  MPI_Status own{};
  const int code = with(request, [&](MPI_Request* handle) { return MPI_Test(handle, done, &own); });
  if (code != MPI_SUCCESS || !*done) return code;
  *status = {own.MPI_SOURCE, 0, 0};
  MPI_Test_cancelled(&own, &status->cancelled);
  if (!status->cancelled) MPI_Get_count(&own, MPI_BYTE, &status->bytes);
  return code;
}
int cancel(Request* request) {
  return with(request, [](MPI_Request* own) { return MPI_Cancel(own); });
}
int finish(Request* request) {
  return with(request, [](MPI_Request* own) { return MPI_Wait(own, MPI_STATUS_IGNORE); });
}

void describe(int code, char* text, int bytes) {
  char own[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, own, &length);
  std::strncpy(text, own, static_cast<std::size_t>(bytes) - 1);
  text[bytes - 1] = '\0';
}

int finalize() { return MPI_Finalize(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const lockstep::mpi::Table* lockstep_mpi_table() {
  int length = 0;
  MPI_Get_library_version(version, &length);
  static const lockstep::mpi::Table table{lockstep::mpi::kInterface,
                                          version,
                                          state,
                                          level,
                                          init,
                                          open,
                                          isend,
                                          irecv,
                                          test,
                                          cancel,
                                          finish,
                                          finalize,
                                          describe};
  return &table;
}
