// What the fake NCCL keeps. Private to the fake.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {

// One call of a rank, as it will be enqueued.
struct NcclCall {
  enum Kind { all_reduce, broadcast, reduce, all_gather, reduce_scatter, send, recv };
  Kind kind = all_reduce;
  const char* name = "";
  ncclComm_t comm = nullptr;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = -1;
  cudaStream_t stream = nullptr;
  std::uint64_t number = 0;  // among the collectives of its communicator, or what it sends to, or gets from, the peer
};
std::string describe(const NcclCall& call);
bool agree(const NcclCall& a, const NcclCall& b);
std::string names_of(const NcclCall& call);  // as describe, of a call that came from another process

// A collective of all its ranks, or a send with its receive.
struct NcclOperation {
  std::mutex mutex;
  std::condition_variable changed;
  int expected = 0, arrived = 0;
  bool done = false;
  bool wrong = false;           // the ranks do not agree: it never ends
  std::vector<NcclCall> calls;  // by rank; of a pair: sender, receiver
  std::vector<bool> present, aborted;
};
// Out of what the ranks brought. Under the operation's mutex.
void compute(NcclOperation& operation, std::uint64_t seed);

class NcclProcesses;
struct NcclGroup {  // the ranks of one unique id
  int size = 0;
  std::shared_ptr<NcclProcesses>
      processes;  // while it is not known that there is one alone, and where there are several
  std::map<std::uint64_t, std::shared_ptr<NcclOperation>> collectives;                  // by number
  std::map<std::tuple<int, int, std::uint64_t>, std::shared_ptr<NcclOperation>> pairs;  // from, to, number
};

std::size_t nccl_bytes(ncclDataType_t type);

}  // namespace fake_cuda

struct ncclComm {
  enum Pending { nothing, joining, enqueuing, finalizing };
  std::shared_ptr<fake_cuda::NcclGroup> group;
  int rank = 0, device = 0;
  bool blocking = true;
  Pending pending = nothing;
  int polls = 0;  // left until it is through with what is pending
  int looks = 0;
  std::vector<fake_cuda::NcclCall> to_enqueue;
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sent, received;                                                // by rank
  std::vector<std::pair<std::shared_ptr<fake_cuda::NcclOperation>, std::size_t>> on_the_way;  // and which part is its
  std::shared_ptr<std::atomic<bool>> busy = std::make_shared<std::atomic<bool>>(false);
  bool finalized = false, buried = false;
  std::shared_ptr<const char> in_graphs = std::make_shared<const char>();  // each graph with its collectives has it too
  bool is_in_graphs() const { return in_graphs.use_count() > 1; }
};

namespace fake_cuda {

struct Nccl {
  std::mutex mutex;  // everything below, and communicators; taken before the machine's
  std::map<std::string, std::shared_ptr<NcclGroup>> groups;  // by unique id
  std::map<int, ncclResult_t> failing;                       // devices
  std::map<int, bool> stalled;
  int polls = -1;  // that each call takes; -1: a few, as drawn
  NcclCounts counts;
  std::uint64_t random = 1;
};
Nccl& nccl();
std::uint64_t draw(Nccl& all);  // under the mutex

// Of the calling thread.
struct OpenGroup {
  int depth = 0;
  std::vector<NcclCall> calls = {};
  ~OpenGroup() {
    if (depth > 0) record_failure(Rule::nccl_group, "the end of the thread", "a group was never ended", -1, nullptr);
  }
};
extern thread_local OpenGroup open_group;

// One call of one thread with a communicator.
class Use {
 public:
  // `may_cut_in`: another thread may be in a call that blocks, which this one ends.
  Use(const char* name, ncclComm_t comm, bool may_cut_in = false) : call{name, state(), this_thread(state())} {
    {
      const std::lock_guard lock(call.machine.mutex);
      if (!call.machine.handles.contains(comm)) {
        (void)call.fail(Rule::nccl_dead,
                        call.machine.dead.contains(comm) ? "it was aborted or destroyed" : "not a communicator");
        return;
      }
      busy_ = comm->busy;
    }
    alive = true;
    if (busy_->exchange(true)) {
      busy_.reset();
      if (may_cut_in && comm->blocking) return;
      (void)call.fail(Rule::nccl_threads, "another thread is in a call with the communicator");
    }
  }
  ~Use() {
    if (busy_) busy_->store(false);
  }
  Call call;
  bool alive = false;

 private:
  std::shared_ptr<std::atomic<bool>> busy_;
};

ncclResult_t injected(Call& call);
// Checks a call, and enqueues it or keeps it for the end of the group.
ncclResult_t submit(const NcclCall& issued);
// What the calls of one group, or one call, say.
ncclResult_t issue(Call& call, const std::vector<NcclCall>& calls);
// One step towards the end of what is pending. Under the mutex.
void advance(Call& call, ncclComm& comm);
// A call of a communicator that blocks: until nothing is pending, or another thread has aborted it. `lock` is of the
// mutex, which it gives back while it waits.
ncclResult_t block(Call& call, ncclComm& comm, std::unique_lock<std::mutex>& lock);
// No more of it, whatever it is at. Under the mutex.
void bury(State& machine, ncclComm_t comm);

}  // namespace fake_cuda
