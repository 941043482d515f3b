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
};
std::string describe(const NcclCall& call);

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

struct NcclGroup {  // the ranks of one unique id
  int size = 0, joined = 0;
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
  std::vector<fake_cuda::NcclCall> to_enqueue;
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sent, received;                                                // by rank
  std::vector<std::pair<std::shared_ptr<fake_cuda::NcclOperation>, std::size_t>> on_the_way;  // and which part is its
  std::shared_ptr<std::atomic<bool>> busy = std::make_shared<std::atomic<bool>>(false);
  bool finalized = false;
};
