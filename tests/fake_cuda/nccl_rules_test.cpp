// The rules of the fake NCCL, each broken on purpose, and the correct use next to it.
#if __has_include(<nccl.h>)
#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "fake_cuda/rules_test.h"

using namespace fake_test;

namespace {

constexpr std::size_t kCount = 16;

// A rank with a stream and memory of its own. Not a test assertion in here: ranks are threads.
struct Rank {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  int* memory = nullptr;  // kCount numbers to send, and room for twice as many

  bool ready() const {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress && ncclCommGetAsyncError(comm, &state) == ncclSuccess) std::this_thread::yield();
    return state == ncclSuccess;
  }
  bool done(ncclResult_t result) const { return result == ncclSuccess || (result == ncclInProgress && ready()); }
  int* room() const { return memory + kCount; }
  bool sum(std::size_t count = kCount) const {
    return done(ncclAllReduce(memory, room(), count, ncclInt32, ncclSum, comm, stream));
  }
  void end() const {
    if (done(ncclCommFinalize(comm))) (void)ncclCommDestroy(comm);
  }
};

// Two ranks on two devices.
struct Pair {
  Machine machine;
  Rank ranks[2];
  Pair() {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (int r = 0; r < 2; ++r) {
      ranks[r].stream = make_stream(r);
      ranks[r].memory = make_memory(r, 3 * kCount * sizeof(int));
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      const ncclResult_t result = ncclCommInitRankConfig(&ranks[r].comm, 2, id, r, &config);
      REQUIRE((result == ncclInProgress || result == ncclSuccess));
    }
    for (const Rank& rank : ranks) REQUIRE(rank.ready());
    for (int r = 0; r < 2; ++r) {
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      int* const numbers = make_pinned();
      std::iota(numbers, numbers + kCount, 100 * r);
      REQUIRE(cudaMemcpyAsync(ranks[r].memory, numbers, kCount * sizeof(int), cudaMemcpyHostToDevice,
                              ranks[r].stream) == cudaSuccess);
      finish(ranks[r].stream);
    }
    REQUIRE(broken() == none());
  }
  void abort_both() {
    std::thread first([&] { (void)ncclCommAbort(ranks[0].comm); });
    (void)ncclCommAbort(ranks[1].comm);
    first.join();
  }
  void finish_both() {
    for (const Rank& rank : ranks) finish(rank.stream);
  }
};

bool contains(const std::vector<std::string>& names, Rule rule) {
  return std::find(names.begin(), names.end(), name_of(rule)) != names.end();
}

}  // namespace

TEST_CASE("NCCL: collectives end when every rank has enqueued them, and not before") {
  Pair pair;
  REQUIRE(pair.ranks[0].sum());
  CHECK(fake_cuda::spinning_collectives() == 1);
  CHECK(cudaStreamQuery(pair.ranks[0].stream) == cudaErrorNotReady);
  (void)forget_error();
  REQUIRE(pair.ranks[1].sum());
  pair.finish_both();
  for (int r = 0; r < 2; ++r) {
    REQUIRE(cudaSetDevice(r) == cudaSuccess);
    int* const numbers = make_pinned();
    REQUIRE(cudaMemcpyAsync(numbers, pair.ranks[r].room(), kCount * sizeof(int), cudaMemcpyDeviceToHost,
                            pair.ranks[r].stream) == cudaSuccess);
    finish(pair.ranks[r].stream);
    for (int i = 0; i < static_cast<int>(kCount); ++i) CHECK(numbers[i] == 100 + 2 * i);
  }
  for (const Rank& rank : pair.ranks) rank.end();
  CHECK(broken() == none());
}

TEST_CASE("NCCL: the ranks call the same, with the same counts, types, operations and roots") {
  const std::vector<std::function<bool(const Rank&)>> others{
      [](const Rank& r) { return r.sum(kCount / 2); },
      [](const Rank& r) {
        return r.done(ncclAllReduce(r.memory, r.room(), kCount, ncclFloat32, ncclSum, r.comm, r.stream));
      },
      [](const Rank& r) {
        return r.done(ncclAllReduce(r.memory, r.room(), kCount, ncclInt32, ncclMax, r.comm, r.stream));
      },
      [](const Rank& r) {
        return r.done(ncclReduce(r.memory, r.room(), kCount, ncclInt32, ncclSum, 0, r.comm, r.stream));
      },
      [](const Rank& r) { return r.done(ncclBroadcast(r.memory, r.memory, kCount, ncclInt32, 1, r.comm, r.stream)); },
  };
  for (const auto& other : others) {
    Pair pair;
    REQUIRE(pair.ranks[0].sum());
    REQUIRE(other(pair.ranks[1]));
    CHECK(broken() == only(Rule::nccl_order));
    pair.abort_both();
  }
  Pair pair;
  const Rank &a = pair.ranks[0], &b = pair.ranks[1];
  REQUIRE(a.done(ncclBroadcast(a.memory, a.memory, kCount, ncclInt32, 0, a.comm, a.stream)));
  REQUIRE(b.done(ncclBroadcast(b.memory, b.memory, kCount, ncclInt32, 1, b.comm, b.stream)));
  CHECK(broken() == only(Rule::nccl_order));
  pair.abort_both();
}

TEST_CASE("NCCL: one thread at a time is in calls with a communicator") {
  Pair pair;
  fake_cuda::inject({.call = "ncclAllReduce", .error = 0, .delay_microseconds = 300'000});
  std::thread late([&] { (void)pair.ranks[0].sum(); });
  while (fake_cuda::calls_of("ncclAllReduce") == 0) std::this_thread::yield();
  ncclResult_t state = ncclSuccess;
  (void)ncclCommGetAsyncError(pair.ranks[0].comm, &state);
  late.join();
  CHECK(broken() == only(Rule::nccl_threads));
  fake_cuda::forget_injections();
  pair.abort_both();
}

TEST_CASE("NCCL: groups are ended as often as they are begun") {
  Pair pair;
  (void)ncclGroupEnd();
  CHECK(broken() == only(Rule::nccl_group));
  std::thread([] { (void)ncclGroupStart(); }).join();
  CHECK(broken() == only(Rule::nccl_group));
  // Sends and receives that wait for each other are one kernel in a group.
  for (const Rank& rank : pair.ranks) {
    const int other = &rank == &pair.ranks[0] ? 1 : 0;
    REQUIRE(ncclGroupStart() == ncclSuccess);
    REQUIRE(ncclSend(rank.memory, kCount, ncclInt32, other, rank.comm, rank.stream) == ncclSuccess);
    REQUIRE(ncclRecv(rank.room(), kCount, ncclInt32, other, rank.comm, rank.stream) == ncclSuccess);
    REQUIRE(rank.done(ncclGroupEnd()));
  }
  pair.finish_both();
  for (const Rank& rank : pair.ranks) rank.end();
  CHECK(broken() == none());
}

TEST_CASE("NCCL: nothing is enqueued on the stream, nor asked of the communicator, before NCCL is done") {
  {
    Pair pair;  // before the end of the group
    const Rank& rank = pair.ranks[0];
    REQUIRE(ncclGroupStart() == ncclSuccess);
    REQUIRE(ncclAllReduce(rank.memory, rank.room(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream) == ncclSuccess);
    const cudaEvent_t event = make_event(0);
    (void)cudaEventRecord(event, rank.stream);
    CHECK(broken() == only(Rule::nccl_in_progress));
    REQUIRE(rank.done(ncclGroupEnd()));
    CHECK(broken() == none());
    pair.abort_both();
  }
  Pair pair;  // while it says that it is in progress
  fake_cuda::stall_nccl(0);
  const Rank& rank = pair.ranks[0];
  REQUIRE(ncclAllReduce(rank.memory, rank.room(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream) ==
          ncclInProgress);
  const cudaEvent_t event = make_event(0);
  (void)cudaEventRecord(event, rank.stream);
  CHECK(broken() == only(Rule::nccl_in_progress));
  (void)ncclAllReduce(rank.memory, rank.room(), kCount, ncclInt32, ncclSum, rank.comm, rank.stream);
  CHECK(broken() == only(Rule::nccl_in_progress));
  fake_cuda::heal_nccl();
  pair.abort_both();
}

TEST_CASE("NCCL: a communicator is used on streams and memory of its device") {
  Pair pair;
  const Rank &a = pair.ranks[0], &b = pair.ranks[1];
  (void)ncclAllReduce(a.memory, a.room(), kCount, ncclInt32, ncclSum, a.comm, b.stream);
  CHECK(broken() == only(Rule::nccl_place));
  (void)ncclAllReduce(b.memory, a.room(), kCount, ncclInt32, ncclSum, a.comm, a.stream);
  CHECK(broken() == only(Rule::foreign_memory));
  (void)ncclAllGather(a.memory, a.room(), 2 * kCount, ncclInt32, a.comm, a.stream);
  CHECK(broken() == only(Rule::out_of_bounds));
  pair.abort_both();
}

TEST_CASE("NCCL: a communicator is not used after its end, nor destroyed with work on the way") {
  Pair pair;
  const Rank &a = pair.ranks[0], &b = pair.ranks[1];
  REQUIRE(a.sum());
  (void)ncclCommDestroy(a.comm);
  CHECK(contains(broken(), Rule::nccl_dead));
  (void)ncclCommAbort(b.comm);
  CHECK(broken() == none());
  CHECK(!b.sum());
  CHECK(broken() == only(Rule::nccl_dead));
  ncclResult_t state = ncclSuccess;
  (void)ncclCommGetAsyncError(b.comm, &state);
  CHECK(broken() == only(Rule::nccl_dead));
}

TEST_CASE("NCCL: what a collective reads and writes is ordered") {
  Pair pair;
  const Rank& a = pair.ranks[0];
  const cudaStream_t aside = make_stream(0);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  int* const numbers = make_pinned();
  REQUIRE(cudaMemcpyAsync(a.memory, numbers, kCount * sizeof(int), cudaMemcpyHostToDevice, aside) == cudaSuccess);
  REQUIRE(a.sum());
  CHECK(broken() == only(Rule::unordered));
  REQUIRE(pair.ranks[1].sum());
  pair.finish_both();
  finish(aside);
  pair.abort_both();
}

TEST_CASE("NCCL: no raw memory call while a collective is on the way") {
  Pair pair;
  REQUIRE(pair.ranks[0].sum());
  void* memory = nullptr;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaMalloc(&memory, 64) == cudaSuccess);
  CHECK(broken() == only(Rule::during_collective));
  REQUIRE(pair.ranks[1].sum());
  pair.finish_both();
  REQUIRE(cudaMalloc(&memory, 64) == cudaSuccess);
  CHECK(broken() == none());
  pair.abort_both();
}

namespace {

cudaGraphExec_t captured(cudaStream_t stream, const std::function<bool()>& body) {
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(body());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return exec;
}

}  // namespace

TEST_CASE("NCCL: what is called on a captured stream runs at each launch of the graph, with the other ranks' calls") {
  Pair pair;
  cudaGraphExec_t execs[2];
  for (int r = 0; r < 2; ++r) {
    REQUIRE(cudaSetDevice(r) == cudaSuccess);
    const Rank& rank = pair.ranks[r];
    execs[r] = captured(rank.stream, [&] {
      return rank.done(ncclAllReduce(rank.memory, rank.memory, kCount, ncclInt32, ncclSum, rank.comm, rank.stream));
    });
  }
  CHECK(fake_cuda::spinning_collectives() == 0);
  for (int i = 0; i < 2; ++i) {
    for (int r = 0; r < 2; ++r) {
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      REQUIRE(cudaGraphLaunch(execs[r], pair.ranks[r].stream) == cudaSuccess);
      CHECK(fake_cuda::spinning_collectives() >= 1 - r);
    }
    pair.finish_both();
  }
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  int* const numbers = make_pinned();
  REQUIRE(cudaMemcpyAsync(numbers, pair.ranks[0].memory, kCount * sizeof(int), cudaMemcpyDeviceToHost,
                          pair.ranks[0].stream) == cudaSuccess);
  finish(pair.ranks[0].stream);
  CHECK(numbers[1] == 2 * (1 + 101));
  for (const cudaGraphExec_t exec : execs) REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
  for (const Rank& rank : pair.ranks) rank.end();
  CHECK(broken() == none());
}

TEST_CASE("NCCL: a thread that captures calls on the streams of its capture alone, all of a group on those") {
  Pair pair;
  const Rank& rank = pair.ranks[0];
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const cudaStream_t aside = make_stream(0);
  const auto sum_on = [&](cudaStream_t stream) {
    return ncclAllReduce(rank.memory, rank.room(), kCount, ncclInt32, ncclSum, rank.comm, stream);
  };
  REQUIRE(cudaStreamBeginCapture(aside, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(sum_on(rank.stream) == ncclInvalidUsage);
  CHECK(broken() == only(Rule::during_capture));
  std::thread([&] {  // another one is free, but for the streams of a group
    (void)cudaSetDevice(0);
    (void)ncclGroupStart();
    (void)sum_on(rank.stream);
    (void)sum_on(aside);
    (void)ncclGroupEnd();
  })
      .join();
  CHECK(broken() == only(Rule::during_capture));
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(aside, &graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  pair.abort_both();
}

TEST_CASE("NCCL: a communicator is not ended while a graph has its collectives, nor is its graph launched after that") {
  Pair pair;
  const Rank& rank = pair.ranks[0];
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const cudaGraphExec_t exec = captured(rank.stream, [&] { return rank.sum(); });
  SECTION("ended") {
    rank.end();
    CHECK(contains(broken(), Rule::nccl_dead));
    CHECK(cudaGraphLaunch(exec, rank.stream) == cudaErrorInvalidValue);
    (void)forget_error();
    CHECK(broken() == only(Rule::nccl_dead));
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
    (void)ncclCommAbort(pair.ranks[1].comm);
  }
  SECTION("aborted") {  // which returns when the graph has gone
    std::atomic<bool> over{false};
    std::thread abort([&] {
      (void)ncclCommAbort(rank.comm);
      over = true;
    });
    (void)ncclCommAbort(pair.ranks[1].comm);
    CHECK(!over);
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
    abort.join();
    CHECK(broken() == none());
  }
}
#endif
