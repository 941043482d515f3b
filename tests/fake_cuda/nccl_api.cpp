// The functions of the fake NCCL.
#if __has_include(<nccl.h>)
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "fake_cuda/nccl_processes.h"
#include "fake_cuda/nccl_state.h"

namespace {
constexpr lockstep::Milliseconds kAbortPatience{30'000};
}  // namespace

using namespace fake_cuda;  // NOLINT

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = state().options.nccl > 0 ? state().options.nccl : NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Call call{"ncclGetUniqueId", state(), this_thread(state())};
  if (const ncclResult_t error = injected(call); error != ncclSuccess) return error;
  const std::string made = NcclProcesses::make_id();
  if (made.empty()) return ncclSystemError;
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "%s", made.c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  Call call{"ncclCommInitRankConfig", state(), this_thread(state())};
  if (const ncclResult_t error = injected(call); error != ncclSuccess) return error;
  if (config->magic != 0xcafebeef || config->version < NCCL_VERSION(2, 14, 0) || rank < 0 || rank >= size)
    return ncclInvalidArgument;
  Nccl& all = nccl();
  std::unique_lock lock(all.mutex);
  auto& group = all.groups[std::string(id.internal, sizeof id.internal)];
  if (!group) {
    const std::shared_ptr<NcclProcesses> processes = NcclProcesses::open(id.internal);
    if (!processes || size > NcclProcesses::kMostRanks) return ncclSystemError;
    group = std::make_shared<NcclGroup>();
    group->processes = processes;
  }
  group->size = size;
  if (group->processes) group->processes->join(rank, size);
  auto* made = new ncclComm;  // never freed: its address stays its own
  made->group = group;
  made->rank = rank;
  made->device = call.thread.current;
  made->blocking = config->blocking != 0;
  made->pending = ncclComm::joining;
  made->polls = 1 + static_cast<int>(draw(all) % 3);
  ++all.counts.made;
  ++all.counts.in_progress;
  if (!made->blocking) *comm = made;
  {
    const std::lock_guard machine_lock(call.machine.mutex);
    make_context(call, made->device);
    call.machine.handles[made] = made->device;
  }
  if (!made->blocking) return ncclInProgress;
  const ncclResult_t result = block(call, *made, lock);
  *comm = made;  // nobody has it before
  return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  Use use("ncclCommGetAsyncError", comm);
  if (!use.alive) return ncclInvalidArgument;
  if (const ncclResult_t error = injected(use.call); error != ncclSuccess) return error;
  Nccl& all = nccl();
  const std::lock_guard lock(all.mutex);
  if (const auto failing = all.failing.find(comm->device); failing != all.failing.end()) {
    *result = failing->second;
    return ncclSuccess;
  }
  if (comm->group->processes && ++comm->looks % 16 == 0 && comm->group->processes->has_dead()) {
    *result = ncclRemoteError;
    return ncclSuccess;
  }
  advance(use.call, *comm);
  *result = comm->pending == ncclComm::nothing ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Use use("ncclCommFinalize", comm);
  if (!use.alive) return ncclInvalidArgument;
  if (const ncclResult_t error = injected(use.call); error != ncclSuccess) return error;
  Nccl& all = nccl();
  const std::lock_guard lock(all.mutex);
  if (comm->pending != ncclComm::nothing) {
    (void)use.call.fail(Rule::nccl_in_progress, "the communicator is not done with what it was asked before");
    return ncclInvalidUsage;
  }
  if (comm->is_in_graphs())
    (void)use.call.fail(Rule::nccl_dead, "it is ended while a graph has collectives of it: NCCL waits for the graph");
  comm->finalized = true;
  if (comm->blocking) return ncclSuccess;
  comm->pending = ncclComm::finalizing;
  comm->polls = 1 + static_cast<int>(draw(all) % 3);
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Use use("ncclCommDestroy", comm);
  if (!use.alive) return ncclInvalidArgument;
  Nccl& all = nccl();
  const std::lock_guard lock(all.mutex);
  for (const auto& [operation, part] : comm->on_the_way) {
    const std::lock_guard operation_lock(operation->mutex);
    if (operation->done) continue;
    (void)use.call.fail(Rule::nccl_dead, "it is destroyed with a collective on the way");
    break;
  }
  if (comm->is_in_graphs()) (void)use.call.fail(Rule::nccl_dead, "it is destroyed while a graph has collectives of it");
  if (comm->pending != ncclComm::nothing)
    (void)use.call.fail(Rule::nccl_in_progress, "it is destroyed before it was done with what it was asked");
  ++all.counts.destroyed;
  bury(use.call.machine, comm);
  return ncclSuccess;
}

// As in NCCL it frees device memory, which waits for whatever else spins on the device.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Use use("ncclCommAbort", comm, true);
  if (!use.alive) return ncclInvalidArgument;
  Nccl& all = nccl();
  {
    const std::lock_guard lock(all.mutex);
    ++all.counts.aborted;
    bury(use.call.machine, comm);
  }
  std::vector<std::shared_ptr<Completion>> marks;
  {
    const std::lock_guard lock(use.call.machine.mutex);
    for (auto& [handle, stream] : use.call.machine.streams) {
      if (stream.device != comm->device) continue;
      marks.push_back(std::make_shared<Completion>());
      stream.host->record(marks.back());
    }
  }
  const lockstep::Deadline deadline = lockstep::Deadline::after(kAbortPatience);
  for (const auto& each : marks) {
    if (each->wait(deadline)) continue;
    (void)use.call.fail(Rule::nccl_dead, "the abort waits for ever for another collective on the device");
    break;
  }
  while (comm->is_in_graphs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as NCCL does
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  Call call{"ncclGroupEnd", state(), this_thread(state())};
  if (open_group.depth == 0) {
    (void)call.fail(Rule::nccl_group, "no group was begun");
    return ncclInvalidUsage;
  }
  if (--open_group.depth > 0) return ncclSuccess;
  const std::vector<NcclCall> calls = std::exchange(open_group.calls, {});
  if (const ncclResult_t error = injected(call); error != ncclSuccess) return error;
  return issue(call, calls);
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({NcclCall::all_reduce, "ncclAllReduce", comm, in, out, count, type, op, -1, stream});
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({NcclCall::broadcast, "ncclBroadcast", comm, in, out, count, type, ncclSum, root, stream});
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return submit({NcclCall::reduce, "ncclReduce", comm, in, out, count, type, op, root, stream});
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({NcclCall::all_gather, "ncclAllGather", comm, in, out, count, type, ncclSum, -1, stream});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return submit({NcclCall::reduce_scatter, "ncclReduceScatter", comm, in, out, count, type, op, -1, stream});
}
ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({NcclCall::send, "ncclSend", comm, in, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({NcclCall::recv, "ncclRecv", comm, nullptr, out, count, type, ncclSum, peer, stream});
}

}  // extern "C"
#endif
