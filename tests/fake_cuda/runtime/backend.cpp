// The CUDA backend on the fake: what it asks of CUDA, and what it makes of the answers.
#include "lockstep/runtime/backend.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "fake_cuda/checked_table.h"
#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/cuda/kernel_report.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"
#include "runtime/gate.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

Backend& cuda() { return backend(DeviceType::cuda); }

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};
using Owned = std::unique_ptr<MemoryBlock, Release>;

// 64 bytes by way of a device and back.
bool round_trip(Device device) {
  unsigned char sent[64], received[64] = {};
  for (int i = 0; i < 64; ++i) sent[i] = static_cast<unsigned char>(i * 3 + 1);
  const Stream stream = default_stream(device);
  const Stream host = default_stream(Device::cpu());
  const Owned block(allocate(stream, 64));
  copy_bytes({block->data, device, sent, Device::cpu(), 64}, host, stream);
  copy_bytes({received, Device::cpu(), block->data, device, 64}, stream, host);
  synchronize(stream);
  return std::memcmp(sent, received, 64) == 0;
}

bool travels(Device from, Device to) {
  const Stream source = default_stream(from), destination = default_stream(to), host = default_stream(Device::cpu());
  const Owned here(allocate(source, 64)), there(allocate(destination, 64));
  unsigned char sent[64], received[64] = {};
  for (int i = 0; i < 64; ++i) sent[i] = static_cast<unsigned char>(i * 5 + 2);
  copy_bytes({here->data, from, sent, Device::cpu(), 64}, host, source);
  copy_bytes({there->data, to, here->data, from, 64}, source, destination);
  copy_bytes({received, Device::cpu(), there->data, to, 64}, destination, host);
  synchronize(source);
  synchronize(destination);
  return std::memcmp(sent, received, 64) == 0;
}

// Alone in its program (ctest: fake_cuda/context), where device 3 alone may have a context.
TEST_CASE("one device's work makes a context there and nowhere else", "[.context]") {
  CHECK(round_trip(Device::cuda(3)));
  CHECK(fake_cuda::devices_with_context() == std::vector<int>{3});
}

TEST_CASE("devices are what the machine has") {
  CHECK(cuda().device_count() == 8);
  CHECK(properties(Device::cuda(6)).total_memory_bytes == properties(Device::cuda(0)).total_memory_bytes / 2);
  CHECK(properties(Device::cuda(7)).multiprocessors == 1);
  CHECK_FALSE(properties(Device::cuda(0)).synchronous);
  CHECK(properties(Device::cuda(0)).checked);
}

TEST_CASE("bytes go to every device and back") {
  for (int i = 0; i < 8; ++i) CHECK(round_trip(Device::cuda(i)));
  CHECK(travels(Device::cuda(1), Device::cuda(2)));
  CHECK(travels(Device::cuda(2), Device::cuda(1)));
}

TEST_CASE("the caller's device stays, whatever the library does on others") {
  int before = -1;
  REQUIRE(cudaGetDevice(&before) == cudaSuccess);
  REQUIRE(cudaSetDevice(2) == cudaSuccess);
  CHECK(round_trip(Device::cuda(1)));
  Stream stream(Device::cuda(4));
  CHECK(stream.query());
  Event event;
  event.record(stream);
  CHECK(event.query());
  (void)memory_stats(Device::cuda(1));
  empty_cache(Device::cuda(1));
  int after = -1;
  CHECK(cudaGetDevice(&after) == cudaSuccess);
  CHECK(after == 2);
  REQUIRE(cudaSetDevice(before) == cudaSuccess);
}

TEST_CASE("memory that a device does not have is OutOfMemory, and the next call works") {
  const Stream stream = default_stream(Device::cuda(5));
  CHECK_THROWS_AS(allocate(stream, std::size_t{4} << 30), OutOfMemory);
  CHECK(round_trip(Device::cuda(5)));
}

TEST_CASE("an error of the runtime is an exception that names the call, once") {
  Stream stream(Device::cuda(0));
  fake_cuda::inject({.call = "cudaLaunchHostFunc", .error = cudaErrorInvalidValue});
  try {
    stream.enqueue([] {});
    FAIL("nothing was thrown");
  } catch (const DeviceError& error) {
    CHECK(std::string(error.what()).find("cudaLaunchHostFunc") != std::string::npos);
    CHECK(std::string(error.what()).find("cudaErrorInvalidValue") != std::string::npos);
  }
  CHECK(cudaGetLastError() == cudaSuccess);
  bool ran = false;
  stream.enqueue([&] { ran = true; });
  synchronize(stream);
  CHECK(ran);
}

// What a kernel writes when it meets a bad index, written by a task of the stream instead.
TEST_CASE("an index that a kernel has reported is an exception at the next wait, once, and no other device's") {
  const Device device = Device::cuda(1), stranger = Device::cuda(2);
  Stream stream(device), other(stranger), follower(stranger);
  for (int round = 0; round < 2; ++round) {
    stream.enqueue([report = cuda::kernel_report(device)] {
      report->reported = 1;
      report->op = cuda::report_index_select;
      report->index = 12;
      report->size = 5;
      std::atomic_ref<int>(report->ready) = 1;
    });
    CHECK_NOTHROW(synchronize(other));
    follower.wait_for(stream);  // whose work comes after it
    CHECK_THROWS_WITH(synchronize(follower), "[index_select] expected indices in [0, 5), got 12 (cuda:1)");
    CHECK_NOTHROW(synchronize(stream));
    CHECK(cuda::kernel_report(device)->reported == 0);
  }
}

TEST_CASE(
    "a stream with a new owner knows nothing of what it waited for, and takes no error from whoever is to be told") {
  const Device device = Device::cuda(1), stranger = Device::cuda(2);
  Stream stream(device);
  stream.enqueue([] {});
  StreamHandle first = nullptr;
  {
    Stream before(stranger);
    before.wait_for(stream);
    synchronize(before);
    first = before.handle();
  }
  std::atomic<bool> done{false};  // asked without a wait of the library's, which would be told
  stream.enqueue([report = cuda::kernel_report(device), &done] {
    report->reported = 1;
    report->op = cuda::report_gather;
    report->index = 7;
    report->size = 5;
    std::atomic_ref<int>(report->ready) = 1;
    done = true;
  });
  while (!done) std::this_thread::yield();
  Stream after(stranger);
  CHECK(after.handle() == first);
  CHECK_NOTHROW(synchronize(after));
  CHECK_THROWS_WITH(synchronize(stream), "[gather] expected indices in [0, 5), got 7 (cuda:1)");
}

// Two threads that work on one device, as far as the library can tell.
TEST_CASE("a bad index is an exception of the thread and the stream that caused it") {
  const Device device = Device::cuda(1);
  Stream first(device), second(device);
  const auto report = [&](const Stream& stream, long long index) {
    stream.enqueue([index, to = cuda::kernel_report(device)] {
      to->reported = 1;
      to->op = cuda::report_gather;
      to->index = index;
      to->size = 5;
      std::atomic_ref<int>(to->ready) = 1;
    });
  };
  const auto finish = [](const Stream& stream) {  // without a wait of the library's, which would be told
    std::atomic<bool> done{false};
    stream.enqueue([&] { done = true; });
    while (!done) std::this_thread::yield();
  };
  const auto told = [](const Stream& stream) -> std::string {
    try {
      synchronize(stream);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  constexpr std::uint64_t kA = 1001, kB = 1002;
  const std::string of_a = "[gather] expected indices in [0, 5), got 11 (cuda:1)",
                    of_b = "[gather] expected indices in [0, 5), got 12 (cuda:1)";
  SECTION("on streams of their own") {
    const detail::CallerScope b(kB);
    {
      const detail::CallerScope a(kA);
      report(first, 11);
      finish(first);
    }
    second.enqueue([] {});
    CHECK(told(second) == "");
    SECTION("the one that caused it is told") {
      const detail::CallerScope a(kA);
      CHECK(told(first) == of_a);
      CHECK(told(first) == "");
    }
    SECTION("or who waits for its stream") {
      CHECK(told(first) == of_a);
      CHECK(told(first) == "");
    }
    SECTION("or for what comes after it") {
      second.wait_for(first);
      CHECK(told(second) == of_a);
    }
  }
  SECTION("on one stream each is told of its own first") {
    {
      const detail::CallerScope a(kA);
      report(first, 11);
    }
    {
      const detail::CallerScope b(kB);
      report(first, 12);
      CHECK(told(first) == of_b);
    }
    const detail::CallerScope a(kA);
    CHECK(told(first) == of_a);
    CHECK(told(first) == "");
  }
}

TEST_CASE("what copies went through is used again after their device has failed") {
  const Device device = Device::cuda(3);
  Stream stream(device);
  const Stream host = default_stream(Device::cpu());
  const Owned block(allocate(stream, 64));
  const unsigned char sent[64] = {5};
  const auto send = [&] { copy_bytes({block->data, device, sent, Device::cpu(), 64}, host, stream); };
  for (int i = 0; i < 8; ++i) send();  // more than there are pieces
  synchronize(stream);
  stream.enqueue([] { throw InvalidArgument("[gather] bad"); });
  for (int i = 0; i < 4; ++i) send();  // each of them fails
  CHECK_THROWS_AS(synchronize(stream), InvalidArgument);
  for (int i = 0; i < 8; ++i) CHECK_NOTHROW(send());
  CHECK_NOTHROW(synchronize(stream));
}

TEST_CASE("a steady state asks for nothing that waits for a collective") {
  // As many copies from pageable memory underway as a stream has pieces of pinned memory for: how many there are at
  // once depends on how fast the device is.
  const auto send_many = [](Device device) {
    const Stream stream = default_stream(device), host = default_stream(Device::cpu());
    const unsigned char sent[64] = {};
    const Owned block(allocate(stream, 64));
    backend_streams::Gate gate;
    stream.enqueue(gate.waits());
    for (int i = 0; i < 4; ++i) copy_bytes({block->data, device, sent, Device::cpu(), 64}, host, stream);
    gate.open();
    synchronize(stream);
  };
  const auto all_right = [&] {
    bool right = true;
    for (int i = 0; i < 3; ++i) {
      right = travels(Device::cuda(1), Device::cuda(2)) && right;
      right = round_trip(Device::cuda(2)) && right;
      for (const int device : {1, 2}) send_many(Device::cuda(device));
    }
    return right;
  };
  REQUIRE(all_right());
  const fake_cuda::SpinningCollective collective;
  CHECK(all_right());
}

TEST_CASE("streams, events and memory are given back") {
  Stream warm_up(Device::cuda(0));
  const fake_cuda::Alive before = fake_cuda::alive();
  for (int i = 0; i < 10; ++i) {
    const StreamHandle stream = cuda().create_stream(0, StreamPriority::normal);
    const EventHandle event = cuda().create_event(0, false);
    void* memory = cuda().allocate(0, 4096);
    void* pinned = cuda().allocate_pinned(4096);
    cuda().record_event(event, stream);
    CHECK(cuda().wait_event(event, Deadline::after(Milliseconds(10'000))));
    cuda().free(0, memory);
    cuda().free_pinned(pinned);
    cuda().destroy_event(event);
    cuda().destroy_stream(stream);
  }
  CHECK(fake_cuda::alive() == before);
}

TEST_CASE("who has waited for all of a stream gets it again, with the streams for its copies") {
  const Device device = Device::cuda(2);
  const auto work = [&] {
    const Stream stream(device), host = default_stream(Device::cpu());
    const unsigned char sent[64] = {};
    const Owned block(allocate(stream, 64)), there(allocate(default_stream(Device::cuda(1)), 64));
    copy_bytes({block->data, device, sent, Device::cpu(), 64}, host, stream);
    copy_bytes({there->data, Device::cuda(1), block->data, device, 64}, stream, default_stream(Device::cuda(1)));
    synchronize(stream);
    synchronize(default_stream(Device::cuda(1)));
  };
  work();
  const auto before = fake_cuda::alive().streams;
  for (int i = 0; i < 20; ++i) work();
  CHECK(fake_cuda::alive().streams <= before + 2);
}

TEST_CASE("threads of their own work on devices of their own") {
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i, &good] {
      for (int round = 0; round < 5; ++round) good += round_trip(Device::cuda(i + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 20);
}

// The last one: the device is lost for the program.
TEST_CASE("after a sticky error the device is lost and the others work", "[.lost]") {
  CHECK(round_trip(Device::cuda(4)));
  Stream stream(Device::cuda(4));
  fake_cuda::break_device(4, cudaErrorIllegalAddress);
  CHECK_THROWS_AS(synchronize(stream), DeviceError);
  CHECK_THROWS_AS(round_trip(Device::cuda(4)), DeviceError);
  CHECK_THROWS_AS(Stream(Device::cuda(4)), DeviceError);
  CHECK(round_trip(Device::cuda(1)));
}

// With LOCKSTEP_FAKE_CUDA=deny=1-0,lose=2-3 (ctest: fake_cuda/peers).
TEST_CASE("links that are missing or lose writes are found out", "[.peers]") {
  CHECK_FALSE(peer_copies(Device::cuda(0), Device::cuda(1)));
  CHECK(peer_copies(Device::cuda(1), Device::cuda(0)));
  CHECK_FALSE(peer_copies(Device::cuda(2), Device::cuda(3)));
  CHECK(travels(Device::cuda(0), Device::cuda(1)));
  CHECK(travels(Device::cuda(1), Device::cuda(0)));
  CHECK(travels(Device::cuda(2), Device::cuda(3)));
}

// With LOCKSTEP_CUDA_DEVICES=5 on 2 GPUs (ctest: fake_cuda/logical).
TEST_CASE("logical devices share GPUs and keep to their share", "[.logical]") {
  REQUIRE(cuda().device_count() == 5);
  for (int i = 0; i < 5; ++i) CHECK(round_trip(Device::cuda(i)));
  for (int i = 1; i < 5; ++i) CHECK(travels(Device::cuda(i), Device::cuda(0)));
  CHECK(properties(Device::cuda(0)).total_memory_bytes == (std::size_t{1} << 30) / 3);
  CHECK(properties(Device::cuda(1)).total_memory_bytes == (std::size_t{1} << 30) / 2);
  CHECK_THROWS_AS(allocate(default_stream(Device::cuda(0)), std::size_t{400} << 20), OutOfMemory);
  CHECK(fake_cuda::devices_with_context() == std::vector<int>{0, 1});
}

// The same. 0, 2 and 4 are one GPU, which does not mind.
TEST_CASE("logical devices of one GPU do not use each other's memory", "[.logical]") {
  const Device device = Device::cuda(2), other = Device::cuda(4);
  const Stream stream = default_stream(device);
  const Owned mine(allocate(stream, 64)), others(allocate(default_stream(other), 64));
  const auto fill = [&](void* memory) {
    fake_cuda::checked_table().entry<FillArgs>()(
        stream,
        {.out = {{.data = memory, .shape = {16}, .strides = {1}, .device = device, .present = true}}, .value = 1});
    synchronize(stream);
    return fake_cuda::take_failures();
  };
  CHECK(fill(mine->data).empty());
  const std::vector<fake_cuda::Failure> failures = fill(others->data);
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].rule == fake_cuda::Rule::foreign_memory);
}

}  // namespace
