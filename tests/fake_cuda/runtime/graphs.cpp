// Graphs, below tensors: what a replay does, in which order and memory.
#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "fake_cuda/runtime/graph_test.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "runtime/gate.h"

using namespace lockstep;
using namespace graph_test;
using Catch::Matchers::Contains;

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

// Nobody has ever had some of what is left of a segment that cannot hold the next block.
TEST_CASE("what is left of full segments while a stream is captured goes with the graph's memory") {
  const Device device = Device::cuda(4);
  constexpr std::size_t kBytes = std::size_t{256} << 10;
  const Stream stream(device);
  empty_cache(device);
  const std::uint64_t before = memory_stats(device).raw_allocations;
  Graph graph = capture(stream, [&] {
    std::vector<Owned> blocks;
    blocks.emplace_back(allocate(stream, 1));
    while (memory_stats(device).raw_allocations < before + 3) blocks.emplace_back(allocate(stream, kBytes));
    for (const Owned& block : blocks) fill(*block, 1, stream);
  });
  graph.replay(stream);
  graph = Graph();
  synchronize(stream);
  empty_cache(device);
  CHECK(memory_stats(device).in_use_bytes == 0);
  CHECK(memory_stats(device).cached_bytes == 0);
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
