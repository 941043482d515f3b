// A fake of NCCL that checks. Calls of communicators that do not block say that they are in progress as often as not,
// and nothing is on the stream before they are done.
#if __has_include(<nccl.h>)
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "fake_cuda/nccl_processes.h"
#include "fake_cuda/nccl_state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {

Nccl& nccl() {
  static auto* const made = new Nccl;
  return *made;
}

thread_local OpenGroup open_group;

std::uint64_t draw(Nccl& all) {
  all.random = all.random * 6364136223846793005u + 1442695040888963407u + state().options.seed;
  return all.random >> 33;
}

ncclResult_t injected(Call& call) { return static_cast<ncclResult_t>(enter(call, nothing)); }

namespace {

std::size_t elements(const NcclCall& call, bool out) {
  const bool whole = out ? call.kind == NcclCall::all_gather : call.kind == NcclCall::reduce_scatter;
  return call.count * static_cast<std::size_t>(whole ? call.comm->group->size : 1);
}
bool reads(const NcclCall& call) {
  return call.kind != NcclCall::recv && (call.kind != NcclCall::broadcast || call.comm->rank == call.peer);
}
bool writes(const NcclCall& call) {
  return call.kind != NcclCall::send && (call.kind != NcclCall::reduce || call.comm->rank == call.peer);
}

using Part = std::pair<std::shared_ptr<NcclOperation>, std::size_t>;  // and whose part of it

// The kernel: one for all calls of a group on a stream.
void spin(const std::vector<Part>& parts, State& machine, int device, std::uint64_t seed) {
  for (const auto& [operation, part] : parts) {
    const std::lock_guard lock(operation->mutex);
    const bool whole = ++operation->arrived == operation->expected && !operation->wrong;
    if (!whole || std::any_of(operation->aborted.begin(), operation->aborted.end(), [](bool each) { return each; }))
      continue;
    compute(*operation, seed);
    operation->done = true;
    operation->changed.notify_all();
  }
  for (const auto& [operation, part] : parts) {
    std::unique_lock lock(operation->mutex);
    while (!operation->done && !operation->aborted[part] && machine.broken_by(device) == cudaSuccess)
      operation->changed.wait_for(lock, std::chrono::milliseconds(50));
  }
  for (std::uint64_t i = 0; i < seed % 7; ++i) std::this_thread::yield();  // the ranks end in any order
  const std::lock_guard lock(machine.mutex);
  --machine.collectives;
}

// The same, of a rank whose others are processes.
void spin_with_processes(const std::vector<Part>& parts, State& machine, int device, NcclProcesses& processes,
                         int rank) {
  std::vector<NcclCall> calls;
  for (const auto& [operation, part] : parts) calls.push_back(operation->calls[part]);
  const auto stopped = [&] {
    if (machine.broken_by(device) != cudaSuccess) return true;
    for (const auto& [operation, part] : parts) {
      const std::lock_guard lock(operation->mutex);
      if (operation->aborted[part]) return true;
    }
    return false;
  };
  const std::string problem = processes.run(rank, calls, stopped);
  if (!problem.empty() && problem != "stopped") {  // it never ends
    record_failure(Rule::nccl_order, calls[0].name, problem, device, calls[0].stream);
    while (!stopped()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& [operation, part] : parts) {
    const std::lock_guard lock(operation->mutex);
    operation->done = problem.empty();
  }
  const std::lock_guard lock(machine.mutex);
  --machine.collectives;
}

// Finds what the call is a part of. Under the mutex of NCCL.
Part join(Call& call, NcclCall issued) {
  ncclComm& comm = *issued.comm;
  if (comm.group->processes) {  // what the others do is in their processes
    const bool sends = issued.kind == NcclCall::send, receives = issued.kind == NcclCall::recv;
    issued.number = ++(sends ? comm.sent[issued.peer] : receives ? comm.received[issued.peer] : comm.collectives);
    auto own = std::make_shared<NcclOperation>();
    own->expected = 1;
    own->calls = {issued};
    own->present = {true};
    own->aborted = {false};
    return {own, 0};
  }
  std::shared_ptr<NcclOperation>* slot = nullptr;
  std::size_t part = static_cast<std::size_t>(comm.rank);
  int expected = comm.group->size;
  if (issued.kind == NcclCall::send || issued.kind == NcclCall::recv) {
    const bool sends = issued.kind == NcclCall::send;
    const int from = sends ? comm.rank : issued.peer, to = sends ? issued.peer : comm.rank;
    slot = &comm.group->pairs[{from, to, ++(sends ? comm.sent : comm.received)[issued.peer]}];
    part = sends ? 0 : 1;
    expected = 2;
  } else {
    slot = &comm.group->collectives[++comm.collectives];
  }
  if (!*slot) *slot = std::make_shared<NcclOperation>();
  NcclOperation& operation = **slot;
  const std::lock_guard lock(operation.mutex);
  operation.expected = expected;
  const auto size = static_cast<std::size_t>(expected);
  operation.calls.resize(size), operation.present.resize(size), operation.aborted.resize(size);
  for (std::size_t r = 0; r < size; ++r) {
    if (!operation.present[r] || agree(operation.calls[r], issued)) continue;
    operation.wrong = true;
    (void)call.fail(Rule::nccl_order, lockstep::cat("another rank has called ", describe(operation.calls[r]),
                                                    ", this one ", describe(issued)));
    break;
  }
  operation.calls[part] = issued;
  operation.present[part] = true;
  return {*slot, part};
}

// To the order checker. Under the mutex.
void judge_uses(Call& call, const NcclCall& issued) {
  judge(call, [&](OrderChecker& checker) {
    std::vector<lockstep::MemoryUse> uses;
    const Device device = Device::cuda(issued.comm->device);
    const std::size_t bytes = nccl_bytes(issued.type);
    if (reads(issued)) uses.push_back(lockstep::MemoryUse::read(issued.in, elements(issued, false) * bytes, device));
    if (writes(issued)) uses.push_back(lockstep::MemoryUse::write(issued.out, elements(issued, true) * bytes, device));
    checker.use(order_handle(issued.stream), issued.name, uses, {});
  });
}

std::function<void()> kernel(const ncclComm& comm, State& machine, std::uint64_t seed,
                             std::function<std::vector<Part>()> parts) {
  return [parts = std::move(parts), &machine, seed, device = comm.device, processes = comm.group->processes,
          rank = comm.rank] {
    if (processes)
      spin_with_processes(parts(), machine, device, *processes, rank);
    else
      spin(parts(), machine, device, seed);
  };
}

void forget_done(ncclComm& comm) {
  std::erase_if(comm.on_the_way, [](const auto& each) {
    const std::lock_guard lock(each.first->mutex);
    return each.first->done;
  });
}

// Into the graph: a launch is a call of its own. Under both mutexes; the calls are of one stream.
void record(Call& call, Capture& capture, const std::vector<NcclCall>& calls) {
  struct Launches {
    std::mutex mutex;
    std::deque<std::vector<Part>> parts;  // of those whose kernel has not begun
  };
  const auto launches = std::make_shared<Launches>();
  ncclComm& comm = *calls[0].comm;
  capture.kept.push_back(comm.in_graphs);
  for (const NcclCall& each : calls) {
    const std::size_t bytes = nccl_bytes(each.type);
    const auto use = [&](const void* memory, std::size_t used) {
      capture.operands[memory] = std::max(capture.operands[memory], used);
    };
    if (reads(each)) use(each.in, elements(each, false) * bytes);
    if (writes(each)) use(each.out, elements(each, true) * bytes);
  }
  capture.launches.push_back([launches, calls](Call& launch) {
    const std::lock_guard lock(nccl().mutex);
    ncclComm& of = *calls[0].comm;
    if (of.buried || of.finalized || of.pending != ncclComm::nothing) {
      (void)launch.fail(of.buried || of.finalized ? Rule::nccl_dead : Rule::nccl_in_progress,
                        "a graph with a collective of a communicator that does not stand it is launched");
      return false;
    }
    forget_done(of);
    std::vector<Part> parts;
    for (const NcclCall& each : calls) parts.push_back(join(launch, each));
    of.on_the_way.insert(of.on_the_way.end(), parts.begin(), parts.end());
    const std::lock_guard launches_lock(launches->mutex);
    launches->parts.push_back(std::move(parts));
    const std::lock_guard machine_lock(launch.machine.mutex);
    ++launch.machine.collectives;
    return true;
  });
  const cudaStream_t handle = calls[0].stream;
  (void)put(call, handle, *find_stream(call, handle), kernel(comm, call.machine, draw(nccl()), [launches] {
              const std::lock_guard lock(launches->mutex);
              std::vector<Part> parts = std::move(launches->parts.front());
              launches->parts.pop_front();
              return parts;
            }));
}

// Onto the streams. Under the mutex of NCCL; of one communicator.
void enqueue(Call& call, const std::vector<NcclCall>& calls) {
  if (calls.empty()) return;
  ncclComm& comm = *calls[0].comm;
  State& machine = call.machine;
  std::map<cudaStream_t, std::vector<NcclCall>> by_stream;
  {
    const std::lock_guard lock(machine.mutex);
    for (const NcclCall& issued : calls) {
      machine.awaited.erase(issued.stream);
      if (!find_stream(call, issued.stream)) return;
      judge_uses(call, issued);
      by_stream[issued.stream].push_back(issued);
    }
    if (capture_of(machine, calls[0].stream)) {
      for (const auto& [handle, list] : by_stream) record(call, *capture_of(machine, handle), list);
      return;
    }
  }
  forget_done(comm);
  std::map<cudaStream_t, std::vector<Part>> parts;
  for (const NcclCall& issued : calls) {
    const Part part = join(call, issued);
    comm.on_the_way.push_back(part);
    parts[issued.stream].push_back(part);
  }
  const std::lock_guard lock(machine.mutex);
  for (auto& [handle, list] : parts) {
    ++machine.collectives;
    Stream* const stream = find_stream(call, handle);
    if (stream) stream->host->run(kernel(comm, machine, draw(nccl()), [list] { return list; }));
  }
}

}  // namespace

// What the calls of one group, or one call, say.
ncclResult_t issue(Call& call, const std::vector<NcclCall>& calls) {
  {
    const std::lock_guard lock(call.machine.mutex);
    const auto differs = [&](const NcclCall& each) {
      return capture_of(call.machine, each.stream) != capture_of(call.machine, calls[0].stream);
    };
    if (std::any_of(calls.begin(), calls.end(), differs)) {
      for (const NcclCall& each : calls) call.machine.awaited.erase(each.stream);
      (void)call.fail(Rule::during_capture, "the streams of a group are not all of one capture, nor all of none");
      return ncclInvalidUsage;
    }
  }
  Nccl& all = nccl();
  std::unique_lock lock(all.mutex);
  std::map<ncclComm_t, std::vector<NcclCall>> by_comm;
  for (const NcclCall& each : calls) by_comm[each.comm].push_back(each);
  bool in_progress = false;
  for (auto& [comm, list] : by_comm) {
    comm->polls = all.polls >= 0 ? all.polls : static_cast<int>(draw(all) % 4);
    if (all.stalled[comm->device]) comm->polls = 1;
    if (comm->polls == 0) {
      enqueue(call, list);
      continue;
    }
    comm->pending = ncclComm::enqueuing;
    comm->to_enqueue = std::move(list);
    if (comm->blocking) {
      if (const ncclResult_t result = block(call, *comm, lock); result != ncclSuccess) return result;
    } else {
      in_progress = true;
    }
  }
  all.counts.in_progress += in_progress;
  return in_progress ? ncclInProgress : ncclSuccess;
}

ncclResult_t submit(const NcclCall& issued) {
  Use use(issued.name, issued.comm);
  if (!use.alive) return ncclInvalidArgument;
  if (const ncclResult_t error = injected(use.call); error != ncclSuccess) return error;
  ncclComm& comm = *issued.comm;
  {
    const std::lock_guard lock(nccl().mutex);
    if (comm.pending != ncclComm::nothing || comm.finalized) {
      (void)use.call.fail(Rule::nccl_in_progress, "the communicator is not done with what it was asked before");
      return ncclInvalidUsage;
    }
  }
  {
    State& machine = use.call.machine;
    const std::lock_guard lock(machine.mutex);
    const auto stream = machine.streams.find(issued.stream);
    if (stream == machine.streams.end() || stream->second.device != comm.device) {
      use.call.stream = issued.stream;
      (void)use.call.fail(Rule::nccl_place, lockstep::cat("a communicator of device ", comm.device, " on a stream of ",
                                                          stream == machine.streams.end()
                                                              ? std::string("no device")
                                                              : lockstep::cat("device ", stream->second.device)));
      return ncclInvalidUsage;
    }
    Capture* const capture = capture_of(machine, issued.stream);
    if (capture && !capture->valid) return ncclUnhandledCudaError;
    if (!capture && captures(use.call)) {
      (void)use.call.fail(Rule::during_capture, "the thread captures, and the stream is not part of it");
      return ncclInvalidUsage;
    }
    const std::size_t bytes = nccl_bytes(issued.type);
    const bool good = (!reads(issued) ||
                       check_operand(use.call, issued.in, elements(issued, false) * bytes, comm.device, "the input")) &&
                      (!writes(issued) ||
                       check_operand(use.call, issued.out, elements(issued, true) * bytes, comm.device, "the output"));
    if (!good) return ncclInvalidArgument;
    machine.awaited[issued.stream] = issued.name;
  }
  if (open_group.depth > 0) {
    open_group.calls.push_back(issued);
    return ncclSuccess;
  }
  return issue(use.call, {issued});
}

// One step towards the end of what is pending. Under the mutex.
void advance(Call& call, ncclComm& comm) {
  if (comm.pending == ncclComm::nothing || nccl().stalled[comm.device]) return;
  if (comm.pending == ncclComm::joining && comm.group->processes) {
    if (!comm.group->processes->complete()) return;
    if (!comm.group->processes->several()) comm.group->processes.reset();
  }
  if (--comm.polls > 0) return;
  enqueue(call, std::exchange(comm.to_enqueue, {}));
  comm.pending = ncclComm::nothing;
  comm.polls = 0;
}

ncclResult_t block(Call& call, ncclComm& comm, std::unique_lock<std::mutex>& lock) {
  while (comm.pending != ncclComm::nothing) {
    if (comm.buried) return ncclInternalError;
    if (const auto failing = nccl().failing.find(comm.device); failing != nccl().failing.end()) return failing->second;
    advance(call, comm);
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  return ncclSuccess;
}

// No more of it, whatever it is at. Under the mutex.
void bury(State& machine, ncclComm_t comm) {
  comm->buried = true;
  if (comm->group->processes) comm->group->processes->leave(comm->rank);
  for (const auto& [operation, part] : comm->on_the_way) {
    const std::lock_guard lock(operation->mutex);
    operation->aborted[part] = true;
    operation->changed.notify_all();
  }
  const std::lock_guard lock(machine.mutex);
  for (const NcclCall& each : comm->to_enqueue) machine.awaited.erase(each.stream);
  machine.handles.erase(comm);
  machine.dead.insert(comm);
}

bool agree(const NcclCall& a, const NcclCall& b) {
  const bool pair = a.kind == NcclCall::send || a.kind == NcclCall::recv;
  return a.count == b.count && a.type == b.type && (pair || (a.kind == b.kind && a.op == b.op && a.peer == b.peer));
}

std::string names_of(const NcclCall& call) {
  constexpr const char* kNames[] = {"ncclAllReduce",     "ncclBroadcast", "ncclReduce", "ncclAllGather",
                                    "ncclReduceScatter", "ncclSend",      "ncclRecv"};
  NcclCall named = call;
  named.name = kNames[call.kind];
  return describe(named);
}

std::string describe(const NcclCall& call) {
  return lockstep::cat(call.name, "(count ", call.count, ", type ", static_cast<int>(call.type), ", op ",
                       static_cast<int>(call.op), ", root ", call.peer, ")");
}

void fail_nccl(int device, int error) {
  const std::lock_guard lock(nccl().mutex);
  nccl().failing[device] = static_cast<ncclResult_t>(error);
}
void stall_nccl(int device) {
  const std::lock_guard lock(nccl().mutex);
  nccl().stalled[device] = true;
}
void slow_nccl(int polls) {
  const std::lock_guard lock(nccl().mutex);
  nccl().polls = polls;
}
void heal_nccl() {
  const std::lock_guard lock(nccl().mutex);
  nccl().failing.clear();
  nccl().stalled.clear();
  nccl().polls = -1;
}
int spinning_collectives() {
  State& machine = state();
  const std::lock_guard lock(machine.mutex);
  return machine.collectives;
}
NcclCounts nccl_counts() {
  const std::lock_guard lock(nccl().mutex);
  return nccl().counts;
}

}  // namespace fake_cuda
#endif
