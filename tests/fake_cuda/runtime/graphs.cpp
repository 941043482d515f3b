// Captures and their graphs, below tensors: order, memory, what is refused, and what is left behind.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/memory/allocator.h"
#include "runtime/gate.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

const Device kDevice = Device::cuda(2);

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};
using Owned = std::unique_ptr<MemoryBlock, Release>;

void fill(const MemoryBlock& block, int value, const Stream& stream) {
  stream.backend().fill_bytes(block.data, value, block.bytes, stream.handle());
}

// The first byte, once `stream` is through.
int first_byte(const MemoryBlock& block, const Stream& stream) {
  unsigned char byte = 0;
  copy_bytes({&byte, Device::cpu(), block.data, block.device, 1}, stream, default_stream(Device::cpu()));
  return byte;
}

std::string broken_rules() {
  std::string text;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) text += to_string(failure) + '\n';
  return text;
}

// Stream and thread are as they were.
void check_usable(const Stream& stream) {
  const Owned block(allocate(stream, 1000));
  fill(*block, 7, stream);
  CHECK(first_byte(*block, stream) == 7);
  Graph graph = capture(stream, [&] { fill(*block, 8, stream); });
  CHECK(first_byte(*block, stream) == 7);
  graph.replay(stream);
  CHECK(first_byte(*block, stream) == 8);
  CHECK(broken_rules() == "");
}

}  // namespace

TEST_CASE("a graph runs when it is replayed, and with what is in its memory then") {
  const Stream stream(kDevice);
  const Owned in(allocate(stream, 512)), out(allocate(stream, 512));
  int calls = 0;
  fill(*in, 1, stream);
  fill(*out, 9, stream);
  Graph graph = capture(stream, [&] {
    CHECK(current_stream(kDevice) == stream);
    copy_bytes({out->data, kDevice, in->data, kDevice, 512}, stream, stream);
    stream.enqueue([&calls] { ++calls; });
  });
  CHECK(graph);
  CHECK(graph.device() == kDevice);
  CHECK_FALSE(current_stream(kDevice) == stream);
  CHECK(first_byte(*out, stream) == 9);
  CHECK(calls == 0);
  for (int i = 1; i <= 3; ++i) {
    fill(*in, i, stream);
    graph.replay(stream);
    CHECK(first_byte(*out, stream) == i);
    CHECK(calls == i);
  }
  {
    const StreamScope scope(stream);
    graph.replay();
    synchronize(stream);
    CHECK(calls == 4);
  }
  Graph moved = std::move(graph);
  CHECK_FALSE(graph);  // NOLINT(bugprone-use-after-move)
  CHECK_THROWS_AS(graph.replay(stream), InvalidArgument);
  CHECK_THROWS_AS(graph.device(), InvalidArgument);
  CHECK_THROWS_WITH(moved.replay(default_stream(Device::cuda(1))), "[replay] expected a stream of cuda:2, got cuda:1");
  CHECK_THROWS_AS(moved.replay(Stream()), InvalidArgument);
  moved = Graph();
  CHECK(broken_rules() == "");
}

TEST_CASE("capture gives what its function returns") {
  const Stream stream(kDevice);
  auto [graph, block] = capture(stream, [&] {
    Owned made(allocate(stream, 300));
    fill(*made, 3, stream);
    return made;
  });
  graph.replay(stream);
  CHECK(first_byte(*block, stream) == 3);
  fill(*block, 4, stream);
  graph = Graph();
  CHECK(first_byte(*block, stream) == 4);  // it lives on
  CHECK(broken_rules() == "");
}

TEST_CASE("the memory of a graph is its own until it goes") {
  const Device device = Device::cuda(4);
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  const Stream stream(device);
  std::set<void*> inside;
  Owned kept;
  const auto work = [&] {
    for (int i = 0; i < 4; ++i) {
      const Owned block(allocate(stream, kBytes));
      fill(*block, i, stream);
      inside.insert(block->data);
    }
    kept.reset(allocate(stream, kBytes));
    fill(*kept, 5, stream);
    inside.insert(kept->data);
  };
  release(allocate(stream, kBytes));  // is in the stream's cache
  Graph graph = capture(stream, work);
  CHECK(inside.size() <= 2);  // used again inside
  const auto outside = [&](const Stream& on) {
    std::vector<Owned> blocks;
    for (int i = 0; i < 6; ++i) blocks.emplace_back(allocate(on, kBytes));
    bool apart = true;
    for (const Owned& block : blocks) apart = apart && !inside.contains(block->data);
    return apart;
  };
  CHECK(outside(stream));
  CHECK(outside(default_stream(device)));
  empty_cache(device);
  graph.replay(stream);  // what it writes is still there
  CHECK(first_byte(*kept, stream) == 5);
  kept.reset();
  CHECK(outside(stream));
  empty_cache(device);
  graph.replay(stream);
  synchronize(stream);
  graph = Graph();
  CHECK(broken_rules() == "");
  const std::uint64_t before = memory_stats(device).raw_allocations;
  CHECK_FALSE(outside(stream));
  CHECK(memory_stats(device).raw_allocations <= before + 6);
  empty_cache(device);
  CHECK(memory_stats(device).in_use_bytes == 0);
  CHECK(broken_rules() == "");
}

TEST_CASE("many graphs, one after the other, need no more memory than one") {
  const Device device = Device::cuda(4);
  const Stream stream(device);
  std::uint64_t after_two = 0;
  for (int i = 0; i < 6; ++i) {
    auto [graph, block] = capture(stream, [&] { return Owned(allocate(stream, std::size_t{5} << 20)); });
    graph.replay(stream);
    if (i == 1) after_two = memory_stats(device).raw_allocations;
  }
  CHECK(memory_stats(device).raw_allocations == after_two);
}

TEST_CASE("what a capture cannot record throws, names the call, and leaves everything as it was") {
  const Stream stream(kDevice), other(kDevice), elsewhere(Device::cuda(1));
  const Stream host = default_stream(Device::cpu());
  const Owned block(allocate(stream, 512)), there(allocate(elsewhere, 512));
  Graph earlier = capture(stream, [&] { fill(*block, 1, stream); });
  std::vector<unsigned char> plain(512);
  Event event;
  struct Wrong {
    const char* message;
    std::function<void()> f;
  };
  const Wrong all[] = {
      {"[synchronize] expected what a capture can record, got a wait of the host for cuda:2",
       [&] { synchronize(stream); }},
      {"[synchronize] expected what a capture can record", [&] { synchronize(kDevice); }},
      {"[wait] expected what a capture can record, got a wait of the host for cuda:2",
       [&] { event.record(stream), wait(event, backend_streams::soon()); }},
      {"[query] expected what a capture can record", [&] { event.record(stream), (void)event.query(); }},
      {"[query] expected what a capture can record", [&] { (void)stream.query(); }},
      {"[copy] expected what a capture can record, got one into host memory",
       [&] {
         copy_bytes({plain.data(), Device::cpu(), block->data, kDevice, 512}, stream, host);
       }},
      {"[copy] expected what a capture can record, got one from host memory that is not pinned to cuda:2",
       [&] {
         copy_bytes({block->data, kDevice, plain.data(), Device::cpu(), 512}, host, stream);
       }},
      {"[copy] expected what a capture can record, got one from cuda:2 to cuda:1: a graph is of one device",
       [&] {
         copy_bytes({there->data, Device::cuda(1), block->data, kDevice, 512}, stream, elsewhere);
       }},
      {"[copy] expected what a capture can record, got one from cuda:1 to cuda:2: a graph is of one device",
       [&] {
         copy_bytes({block->data, kDevice, there->data, Device::cuda(1), 512}, elsewhere, stream);
       }},
      {"[fill] expected what a capture can record, got work on a stream of cuda:2 that is not captured",
       [&] { fill(*block, 2, other); }},
      {"[enqueue] expected what a capture can record, got work on a stream of cuda:1 that is not captured",
       [&] { elsewhere.enqueue([] {}); }},
      {"[wait] expected what a capture can record, got a stream of cuda:1 that waits for one of cuda:2",
       [&] { elsewhere.wait_for(stream); }},
      {"[wait] expected what a capture can record, got the default stream of cuda:2",
       [&] { default_stream(kDevice).wait_for(stream); }},
      {"[wait] expected what a capture can record", [&] { host.wait_for(stream); }},
      {"[replay] expected what a capture can record, got a graph inside another", [&] { earlier.replay(stream); }},
      {"[capture] expected a thread that captures nothing, got a capture inside another",
       [&] { (void)capture(other, [] {}); }},
  };
  for (const Wrong& wrong : all) {
    INFO(wrong.message);
    CHECK_THROWS_WITH(capture(stream,
                              [&] {
                                const Owned made(allocate(stream, 2000));
                                fill(*made, 1, stream);
                                wrong.f();
                              }),
                      Contains(wrong.message));
    check_usable(stream);
    check_usable(other);
  }
  // A program that catches it does not get a graph without it.
  CHECK_THROWS_AS(capture(stream,
                          [&] {
                            try {
                              synchronize(stream);
                            } catch (const NotSupported&) {
                            }
                            fill(*block, 1, stream);
                          }),
                  NotSupported);
  check_usable(stream);
}

TEST_CASE("what the function throws comes through, and nothing has run") {
  const Stream stream(kDevice);
  const Owned block(allocate(stream, 512));
  fill(*block, 1, stream);
  const std::size_t in_use = memory_stats(kDevice).in_use_bytes;
  CHECK_THROWS_AS(capture(stream,
                          [&] {
                            const Owned made(allocate(stream, 1 << 20));
                            fill(*block, 2, stream);
                            throw std::domain_error("in the middle");
                          }),
                  std::domain_error);
  CHECK(memory_stats(kDevice).in_use_bytes == in_use);
  CHECK(first_byte(*block, stream) == 1);
  check_usable(stream);
}

TEST_CASE("a capture that another library has spoilt says so") {
  const Stream stream(kDevice);
  const Owned block(allocate(stream, 512));
  int before = 0;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  REQUIRE(cudaSetDevice(native_ordinal(kDevice)) == cudaSuccess);
  CHECK_THROWS_WITH(capture(stream,
                            [&] {
                              fill(*block, 1, stream);
                              void* memory = nullptr;
                              (void)cudaMalloc(&memory, 64);
                              (void)cudaGetLastError();
                            }),
                    Contains("[cudaStreamEndCapture] expected success, got cudaErrorStreamCaptureInvalidated"));
  REQUIRE(cudaSetDevice(before) == cudaSuccess);
  CHECK_THAT(broken_rules(), Contains("invalidates a capture"));
  check_usable(stream);
}

TEST_CASE("default streams are not captured") {
  const auto nothing = [] {};
  CHECK_THROWS_WITH(capture(default_stream(kDevice), nothing),
                    Contains("[capture] expected a stream of one's own, got the default stream of cuda:2"));
  CHECK_THROWS_AS(capture(copy_stream(kDevice), nothing), InvalidArgument);
  CHECK_THROWS_WITH(capture(Stream::foreign(kDevice, nullptr), nothing),  // CUDA's legacy one
                    Contains("[capture] expected a stream of one's own, got the default stream of cuda:2"));
  CHECK_THROWS_AS(capture(Stream(), nothing), InvalidArgument);
  CHECK(can_capture(kDevice));
  for (const Device device : {Device::cpu(), Device::host(0)}) {
    CHECK_FALSE(can_capture(device));
    CHECK_THROWS_AS(capture(Stream(device), nothing), NotSupported);
  }
  CHECK_THROWS_WITH(capture(Stream(Device::host(1)), nothing),
                    Contains("[capture] expected a device that replays graphs (cuda), got one of type host"));
  check_usable(Stream(kDevice));
}

TEST_CASE("a stream of another library is captured, and with it what the library enqueues there itself") {
  int before = 0;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  REQUIRE(cudaSetDevice(native_ordinal(kDevice)) == cudaSuccess);
  cudaStream_t native = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking) == cudaSuccess);
  {
    const Stream stream = Stream::foreign(kDevice, native);
    const Owned block(allocate(stream, 512));
    fill(*block, 1, stream);
    {
      Graph graph = capture(stream, [&] { CHECK(cudaMemsetAsync(block->data, 6, 512, native) == cudaSuccess); });
      CHECK(first_byte(*block, stream) == 1);
      graph.replay(stream);
      CHECK(first_byte(*block, stream) == 6);
    }
    synchronize(stream);
  }
  CHECK(cudaStreamDestroy(native) == cudaSuccess);
  REQUIRE(cudaSetDevice(before) == cudaSuccess);
  CHECK(broken_rules() == "");
}

TEST_CASE("other threads go on while one captures") {
  const Stream stream(kDevice);
  const Owned block(allocate(stream, 512));
  std::atomic<bool> good{false};
  const auto work = [&] {
    const Stream mine(kDevice);
    std::vector<Owned> blocks;
    for (int i = 0; i < 8; ++i) {
      blocks.emplace_back(allocate(mine, std::size_t{7} << 20));  // growth
      fill(*blocks.back(), i, mine);
    }
    bool right = first_byte(*blocks[3], mine) == 3;
    synchronize(mine);
    synchronize(kDevice);
    synchronize(default_stream(kDevice));
    blocks.clear();
    empty_cache(kDevice);
    const Owned plain(allocate(default_stream(kDevice), 512));
    fill(*plain, 9, default_stream(kDevice));
    void* raw = nullptr;  // of another library
    right = right && cudaMalloc(&raw, 64) == cudaSuccess && cudaFree(raw) == cudaSuccess;
    right = right && first_byte(*plain, default_stream(kDevice)) == 9 && mine.query();
    good = right;
  };
  Graph graph = capture(stream, [&] {
    const Owned made(allocate(stream, 4000));
    fill(*block, 1, stream);
    std::thread(work).join();
    const Owned more(allocate(stream, std::size_t{9} << 20));  // growth here
    fill(*more, 1, stream);
    fill(*block, 2, stream);
  });
  CHECK(good);
  graph.replay(stream);
  CHECK(first_byte(*block, stream) == 2);
  CHECK(broken_rules() == "");
}

TEST_CASE("another thread that uses a captured stream is told so") {
  const Stream stream(kDevice);
  std::string message;
  Graph graph = capture(stream, [&] {
    std::thread([&] {
      try {
        Event event;
        event.record(stream);
      } catch (const Error& error) {
        message = error.what();
      }
    }).join();
  });
  CHECK_THAT(message, Contains("[record] expected a stream that no other thread captures, got one of cuda:2"));
  check_usable(stream);
}

TEST_CASE("a block that the captured stream has used is not marked before the capture is over") {
  const Stream stream(kDevice), owner(kDevice);
  MemoryBlock* block = allocate(owner, std::size_t{11} << 20);
  const void* const data = block->data;
  record_use(block, stream);
  Graph graph = capture(stream, [&] {
    std::thread([&] { release(block); }).join();
    const Owned other(allocate(owner, std::size_t{11} << 20));
    CHECK(other->data != data);
  });
  synchronize(stream);
  const Owned again(allocate(owner, std::size_t{11} << 20)), more(allocate(owner, std::size_t{11} << 20));
  CHECK((again->data == data || more->data == data));
  CHECK(broken_rules() == "");
}

TEST_CASE("replays come after what the work was recorded behind, and after each other") {
  const Stream stream(kDevice), other(kDevice), before(kDevice);
  backend_streams::Gate gate;
  std::vector<int> order;  // one at a time
  before.enqueue(gate.waits());
  before.enqueue([&] { order.push_back(0); });
  Event event;
  event.record(before);
  Graph graph = capture(stream, [&] {
    stream.wait(event);  // from outside
    stream.enqueue([&] { order.push_back(static_cast<int>(order.size())); });
  });
  CHECK_FALSE(stream.query());  // it has been told to wait
  graph.replay(other);
  graph.replay(stream);
  graph.replay(other);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(order.empty());
  CHECK_FALSE(other.query());
  gate.open();
  synchronize(other);
  CHECK(order == std::vector{0, 1, 2, 3});
  CHECK(broken_rules() == "");
}

TEST_CASE("two replays on two streams do not run at the same time") {
  const Stream stream(kDevice), other(kDevice);
  backend_streams::Gate gate;
  std::atomic<int> ran{0};
  Graph graph = capture(stream, [&] { stream.enqueue([&] { ++ran; }); });
  stream.enqueue(gate.waits());
  graph.replay(stream);
  graph.replay(other);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(ran == 0);
  gate.open();
  synchronize(other);
  CHECK(ran == 2);
}

TEST_CASE("streams that wait for the captured one belong to the graph, with memory of their own") {
  const Stream stream(kDevice), fork(kDevice);
  const Owned a(allocate(stream, 512)), b(allocate(stream, 512));
  void *here = nullptr, *there = nullptr, *used = nullptr;
  Graph graph = capture(stream, [&] {
    fill(*a, 1, stream);
    fork.wait_for(stream);
    {
      const Owned made(allocate(fork, 3000));
      there = made->data;
      fill(*made, 1, fork);
    }
    {
      const Owned made(allocate(stream, 3000));
      here = made->data;
      fill(*made, 1, stream);
    }
    {
      const Owned shared(allocate(stream, 6000));
      used = shared->data;
      fork.wait_for(stream);
      fill(*shared, 1, fork);
      record_use(shared.get(), fork);
    }
    const Owned next(allocate(stream, 6000));  // the fork may be at work on the one before
    CHECK(next->data != used);
    fill(*b, 2, fork);  // nobody waits for it inside
  });
  CHECK(here != there);
  const Owned again(allocate(fork, 3000)), and_again(allocate(stream, 3000));
  CHECK((again->data != there && and_again->data != here));
  fill(*b, 0, stream);
  synchronize(stream);
  graph.replay(stream);
  CHECK(first_byte(*b, stream) == 2);
  check_usable(fork);
}

TEST_CASE("pinned memory is copied anew by each replay") {
  const Stream stream(kDevice), host = default_stream(Device::cpu());
  auto* const pinned = static_cast<unsigned char*>(backend(kDevice).allocate_pinned(512));
  const Owned block(allocate(stream, 512));
  {
    Graph graph = capture(stream, [&] {
      copy_bytes({block->data, kDevice, pinned, Device::cpu(), 512}, host, stream);
    });
    for (const unsigned char value : {3, 4}) {
      std::memset(pinned, value, 512);
      graph.replay(stream);
      CHECK(first_byte(*block, stream) == value);
    }
  }
  backend(kDevice).free_pinned(pinned);
  CHECK(broken_rules() == "");
}

TEST_CASE("a task of a graph that fails is told to who waits, and the next replay runs") {
  const Stream stream(kDevice);
  bool fails = true;
  int ran = 0;
  Graph graph = capture(stream, [&] {
    stream.enqueue([&] {
      if (fails) throw InvalidArgument("of the task");
    });
    stream.enqueue([&] { ++ran; });
  });
  graph.replay(stream);
  CHECK_THROWS_WITH(synchronize(stream), "of the task");
  CHECK(ran == 0);
  {
    Graph going = capture(stream, [&] { stream.enqueue([] { throw InvalidArgument("of a graph that goes"); }); });
    going.replay(stream);
  }
  CHECK_THROWS_WITH(synchronize(stream), "of a graph that goes");
  fails = false;
  graph.replay(stream);
  synchronize(stream);
  CHECK(ran == 1);
}

TEST_CASE("an event that was recorded in a capture marks nothing") {
  const Stream stream(kDevice), other(kDevice);
  Event event;
  Graph graph = capture(stream, [&] { event.record(stream); });
  CHECK_THROWS_WITH(other.wait(event),
                    Contains("[wait] expected an event that marks work on a stream, got one of cuda:2 that was "
                             "recorded in a capture"));
  CHECK_THROWS_AS(wait(event, backend_streams::soon()), InvalidArgument);
  event.record(stream);
  wait(event, backend_streams::soon());
  CHECK(broken_rules() == "");
}

// Alone in its program (ctest: fake_cuda/graph_lost): the device is lost.
TEST_CASE("a graph of a device that is lost says so, and goes", "[.graph_lost]") {
  const Stream stream(kDevice);
  const Owned block(allocate(stream, 512));
  auto graph = std::make_unique<Graph>(capture(stream, [&] { fill(*block, 1, stream); }));
  graph->replay(stream);
  synchronize(stream);
  fake_cuda::break_device(native_ordinal(kDevice), cudaErrorIllegalAddress);
  CHECK_THROWS_AS(graph->replay(stream), DeviceError);
  CHECK_THROWS_AS(graph->replay(stream), DeviceError);
  graph.reset();
  CHECK_THROWS_AS(capture(stream, [] {}), DeviceError);
  (void)fake_cuda::take_failures();
}
