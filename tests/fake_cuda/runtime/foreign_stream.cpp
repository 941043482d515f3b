// Streams of other libraries as Lockstep's.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"
#include "runtime/gate.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

// A stream as another library makes it.
struct Native {
  explicit Native(Device device) {
    int before = 0;
    REQUIRE(cudaGetDevice(&before) == cudaSuccess);
    REQUIRE(cudaSetDevice(native_ordinal(device)) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaSetDevice(before) == cudaSuccess);
  }
  Native(const Native&) = delete;
  ~Native() { (void)cudaStreamDestroy(stream); }
  cudaStream_t stream = nullptr;
};

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};
using Owned = std::unique_ptr<MemoryBlock, Release>;

}  // namespace

TEST_CASE("a foreign stream is the same Stream each time, and enqueues on the stream itself") {
  const Device device = Device::cuda(2);
  const Native native(device), other(device);
  const Stream stream = Stream::foreign(device, native.stream);
  CHECK(stream == Stream::foreign(device, native.stream));
  CHECK_FALSE(stream == Stream::foreign(device, other.stream));
  CHECK(native_stream(stream) == native.stream);
  CHECK(stream.device() == device);
  int ran = 0;
  stream.enqueue([&] { ++ran; });
  synchronize(stream);
  CHECK(ran == 1);
  CHECK(stream.query());
}

// Nobody has ever had some of what is left of a segment that cannot hold the next block.
TEST_CASE("what is left of full segments goes with a foreign stream too") {
  const Device device = Device::cuda(3);
  constexpr std::size_t kBytes = std::size_t{256} << 10;
  empty_cache(device);
  const std::uint64_t before = memory_stats(device).raw_allocations;
  {
    const Native native(device);
    const Stream stream = Stream::foreign(device, native.stream);
    std::vector<Owned> blocks;
    blocks.emplace_back(allocate(stream, 1));
    while (memory_stats(device).raw_allocations < before + 3) blocks.emplace_back(allocate(stream, kBytes));
    for (const Owned& block : blocks) backend(device).fill_bytes(block->data, 1, block->bytes, stream.handle());
    synchronize(stream);
  }
  empty_cache(device);
  CHECK(memory_stats(device).in_use_bytes == 0);
  CHECK(memory_stats(device).cached_bytes == 0);
  CHECK(fake_cuda::take_failures().empty());
}

TEST_CASE("a foreign stream may go once its last handle is gone, and its memory serves others") {
  const Device device = Device::cuda(3);
  void* data = nullptr;
  void* again = nullptr;
  auto native = std::make_unique<Native>(device);
  {
    const Stream first = Stream::foreign(device, native->stream), second = first;
    const Owned block(allocate(first, 5 << 20));
    data = block->data;
    backend(device).fill_bytes(data, 1, 5 << 20, second.handle());
  }
  // No handle holds it: whoever comes next gets the memory once the fill is done.
  synchronize(default_stream(device));
  {
    const Stream back = Stream::foreign(device, native->stream);
    synchronize(back);
    const Owned block(allocate(back, 5 << 20));
    again = block->data;
  }
  CHECK(again == data);
  native.reset();
  synchronize(device);  // asks nothing of a stream that is gone
  const Owned block(allocate(default_stream(device), 5 << 20));
  CHECK(block->data == data);
  empty_cache(device);
}

TEST_CASE("what others used of a foreign stream's memory waits for its own work too, once no handle holds it") {
  const Device device = Device::cuda(3);
  const Stream own = default_stream(device), user(device);
  empty_cache(device);
  const Native native(device);
  backend_streams::Gate gate;
  void* data = nullptr;
  {
    const Stream stream = Stream::foreign(device, native.stream);
    const Owned block(allocate(stream, 5 << 20));
    data = block->data;
    stream.enqueue(gate.waits());
    backend(device).fill_bytes(data, 1, 5 << 20, stream.handle());
    record_use(block.get(), user);
  }
  synchronize(user);
  {
    const Owned block(allocate(own, 5 << 20));
    CHECK(block->data != data);
  }
  gate.open();
  synchronize(Stream::foreign(device, native.stream));
  const Owned first(allocate(own, 5 << 20)), second(allocate(own, 5 << 20));
  CHECK((first->data == data || second->data == data));
  empty_cache(device);
}

TEST_CASE("a device that is absent has no ordinal") {
  CHECK_THROWS_AS(native_ordinal(Device::cuda(99)), InvalidArgument);
  CHECK_THROWS_AS(native_ordinal(Device::host(0)), NotSupported);
}

TEST_CASE("memory and copies on a foreign stream are ordered by it, and with Lockstep's own") {
  const Device device = Device::cuda(1);
  const Native native(device);
  const Stream stream = Stream::foreign(device, native.stream), own(device), cpu = default_stream(Device::cpu());
  std::vector<unsigned char> sent(4096), received(4096);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(7 * i + 3);
  for (int round = 0; round < 3; ++round) {
    std::fill(received.begin(), received.end(), 0);
    const Owned block(allocate(stream, sent.size()));
    copy_bytes({block->data, device, sent.data(), Device::cpu(), sent.size()}, cpu, stream);
    own.wait_for(stream);
    copy_bytes({received.data(), Device::cpu(), block->data, device, sent.size()}, own, cpu);
    stream.wait_for(own);
    synchronize(stream);
    CHECK(received == sent);
  }
  {
    const StreamScope scope(stream);
    CHECK(current_stream(device) == stream);
  }
  CHECK(current_stream(device) == default_stream(device));
}
