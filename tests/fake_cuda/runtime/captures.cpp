// Captures, below tensors: what is refused, who may go on meanwhile, and what is left behind.
#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fake_cuda/runtime/graph_test.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "runtime/gate.h"

using namespace lockstep;
using namespace graph_test;
using Catch::Matchers::Contains;

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
      {"[synchronize] expected what a capture can record",  // after a stream has joined
       [&] { other.wait_for(stream), fill(*block, 2, other), synchronize(other); }},
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
  CHECK_THROWS_AS(capture(Stream(kDevice), std::function<void()>()), InvalidArgument);
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
