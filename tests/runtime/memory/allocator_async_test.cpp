// The caching allocator on devices that work on their own: here a block may come back too early.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "runtime/manual_backend.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

constexpr std::size_t kMiB = 1 << 20;
const Device kDevice = Device::cuda(0);

// Leaves device and backend as it found them.
struct Fresh {
  Fresh() { clear(); }
  ~Fresh() { clear(); }
  static void clear() {
    manual::backend().reset();
    set_memory_limit(kDevice, 0);
    empty_cache(kDevice);
    manual::backend().reset();
  }
};

}  // namespace

TEST_CASE("a stream reuses its own blocks at once") {
  Fresh fresh;
  Stream stream(kDevice);
  MemoryBlock* block = allocate(stream, 5000);
  void* const data = block->data;
  manual::backend().touch(stream.handle(), data);  // still queued: the stream's order protects it
  record_use(block, stream);                       // says nothing new
  release(block);
  MemoryBlock* again = allocate(stream, 5000);
  CHECK(again->data == data);
  release(again);
}

TEST_CASE("a block that another stream used comes back after that stream's work") {
  Fresh fresh;
  Stream stream(kDevice), user(kDevice), far_user(Device::cuda(1));
  MemoryBlock* block = allocate(stream, 5000);
  void* const data = block->data;
  user.enqueue([] {});
  far_user.enqueue([] {});
  record_use(block, user);
  record_use(block, far_user);
  record_use(block, user);
  manual::backend().records = 0;
  release(block);
  CHECK(manual::backend().records == 2);  // one for each user, however often it was named
  CHECK(memory_stats(kDevice).in_use_bytes == 0);

  MemoryBlock* second = allocate(stream, 5000);
  CHECK(second->data != data);
  manual::backend().run(user.handle());
  MemoryBlock* third = allocate(stream, 5000);
  CHECK(third->data != data);  // the far one is still at it
  manual::backend().run(far_user.handle());
  MemoryBlock* fourth = allocate(stream, 5000);
  CHECK(fourth->data == data);
  for (MemoryBlock* each : {second, third, fourth}) release(each);
}

TEST_CASE("two streams of one device that used a block are two uses") {
  Fresh fresh;
  Stream stream(kDevice), first(Device::cuda(1)), second(Device::cuda(1));
  MemoryBlock* block = allocate(stream, 5000);
  void* const data = block->data;
  manual::backend().touch(first.handle(), data);
  manual::backend().touch(second.handle(), data);
  record_use(block, first);
  record_use(block, second);
  release(block);
  manual::backend().run(first.handle());
  MemoryBlock* early = allocate(stream, 5000);
  CHECK(early->data != data);
  manual::backend().run(second.handle());
  MemoryBlock* late = allocate(stream, 5000);
  CHECK(late->data == data);
  release(early);
  release(late);
}

TEST_CASE("memory that a device refuses with an error counts for nothing") {
  Fresh fresh;
  Stream stream(kDevice);
  const MemoryStats before = memory_stats(kDevice);
  set_memory_limit(kDevice, 8 * kMiB);
  manual::backend().fail_allocations = true;
  // Each one would count against the limit.
  for (int i = 0; i < 4; ++i) CHECK_THROWS_AS(allocate(stream, 3 * kMiB), DeviceError);
  manual::backend().fail_allocations = false;
  CHECK(memory_stats(kDevice).cached_bytes == before.cached_bytes);
  CHECK(memory_stats(kDevice).in_use_bytes == before.in_use_bytes);
  MemoryBlock* block = allocate(stream, 3 * kMiB);
  CHECK(block->bytes >= 3 * kMiB);
  release(block);
}

TEST_CASE("uses are forgotten once the block is back") {
  Fresh fresh;
  Stream stream(kDevice), user(kDevice);
  MemoryBlock* block = allocate(stream, 5000);
  record_use(block, user);
  release(block);
  manual::backend().run_all();
  block = allocate(stream, 5000);
  user.enqueue([] {});  // later work of the user has nothing to do with it
  void* const data = block->data;
  release(block);
  block = allocate(stream, 5000);
  CHECK(block->data == data);
  release(block);
}

TEST_CASE("memory goes back to the device only when its own stream is done with it") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  Stream stream(kDevice);
  MemoryBlock* block = allocate(stream, 3 * kMiB);
  backend.touch(stream.handle(), block->data);
  release(block);
  empty_cache(kDevice);
  CHECK(backend.unsafe_frees == 0);
  CHECK(backend.host_waits > 0);
  CHECK(memory_stats(kDevice).cached_bytes == 0);
}

TEST_CASE("memory goes back to the device only when other streams are done with it") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  Stream stream(kDevice), user(Device::cuda(1));
  MemoryBlock* block = allocate(stream, 3 * kMiB);
  backend.touch(user.handle(), block->data);
  record_use(block, user);
  release(block);
  empty_cache(kDevice);
  CHECK(backend.unsafe_frees == 0);
  CHECK(backend.host_waits > 0);
  CHECK(memory_stats(kDevice).cached_bytes == 0);
}

TEST_CASE("a device that is full waits for what is in use elsewhere before it gives up") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  Stream stream(kDevice), user(kDevice);
  MemoryBlock* block = allocate(stream, 40 * kMiB);  // of 64
  backend.touch(user.handle(), block->data);
  record_use(block, user);
  release(block);
  MemoryBlock* other = allocate(stream, 32 * kMiB);
  CHECK(backend.unsafe_frees == 0);
  CHECK_THROWS_AS(allocate(stream, 48 * kMiB), OutOfMemory);
  release(other);
}

TEST_CASE("a flush that times out loses nothing, and gives nobody what is in use") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  Stream stream(kDevice), user(kDevice), stranger(kDevice);
  constexpr std::size_t kBytes = 12 * kMiB;
  MemoryBlock* cached = allocate(stream, kBytes);
  MemoryBlock* pending = allocate(stream, kBytes);
  MemoryBlock* small = allocate(stream, 1000);
  void* const data = cached->data;
  backend.touch(stream.handle(), data);
  backend.touch(user.handle(), pending->data);
  record_use(pending, user);
  release(cached);
  release(pending);
  const MemoryStats before = memory_stats(kDevice);
  backend.waits_help = false;
  CHECK_THROWS_AS(empty_cache(kDevice), TimeoutError);
  CHECK_THROWS_AS(allocate(stream, 60 * kMiB), TimeoutError);
  CHECK(memory_stats(kDevice).cached_bytes == before.cached_bytes);
  CHECK(memory_stats(kDevice).raw_frees == before.raw_frees);
  const std::uint64_t calls = memory_stats(kDevice).raw_allocations;
  MemoryBlock* elsewhere = allocate(stranger, kBytes);  // raw memory: neither of the two
  MemoryBlock* again = allocate(stream, kBytes);        // the cached one, which its own stream orders
  MemoryBlock* more = allocate(stream, kBytes);         // raw memory: the other is in use by a stream
  CHECK(again->data == data);
  release(allocate(stream, 1000));  // the open segment is open again
  CHECK(memory_stats(kDevice).raw_allocations == calls + 2);
  backend.waits_help = true;
  for (MemoryBlock* block : {elsewhere, again, more, small}) release(block);
  empty_cache(kDevice);
  CHECK(memory_stats(kDevice).cached_bytes == 0);
  CHECK(backend.unsafe_frees == 0);
}

TEST_CASE("while a flush waits, others go on") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  Stream busy(kDevice), user(kDevice);
  auto stream = std::make_unique<Stream>(kDevice);
  MemoryBlock* cached = allocate(*stream, 3 * kMiB);
  MemoryBlock* held = allocate(busy, 1000);
  MemoryBlock* other = nullptr;
  MemoryBlock* late = allocate(busy, 5 * kMiB);
  backend.touch(stream->handle(), cached->data);
  release(cached);
  std::optional<Stream> newcomer;
  backend.on_host_wait = [&] {
    stream.reset();  // the stream of blocks that the flush has in its hands
    newcomer.emplace(kDevice);
    other = allocate(busy, 2000);
    backend.touch(user.handle(), late->data);
    record_use(late, user);
    release(late);
  };
  empty_cache(kDevice);
  CHECK(backend.unsafe_frees == 0);
  REQUIRE(other);
  CHECK(other->data != held->data);
  release(other);
  release(held);
  backend.run_all();
  empty_cache(kDevice);
  CHECK(memory_stats(kDevice).in_use_bytes == 0);
  CHECK(memory_stats(kDevice).cached_bytes == 0);
}

TEST_CASE("a request beside a flush waits for what the flush has in its hands") {
  manual::ManualBackend& backend = manual::backend();
  for (std::function<void()>* const moment : {&backend.on_host_wait, &backend.on_free}) {
    Fresh fresh;
    Stream stream(kDevice), other(kDevice);
    MemoryBlock* cached = allocate(stream, 40 * kMiB);  // of 64
    backend.touch(stream.handle(), cached->data);
    release(cached);
    std::promise<bool> has;
    std::future<bool> answer = has.get_future();
    std::thread asks;
    *moment = [&] {
      asks = std::thread([&] {
        MemoryBlock* block = nullptr;
        try {
          block = allocate(other, 40 * kMiB);
        } catch (const OutOfMemory&) {
        }
        release(block);
        has.set_value(block != nullptr);
      });
      // Who did not wait would have an answer by now; who waits has none, however long that takes.
      answer.wait_for(std::chrono::milliseconds(20));
    };
    empty_cache(kDevice);
    CHECK(answer.get());
    asks.join();
  }
}

TEST_CASE("the next stream takes over the memory of one that is gone, once that has nothing to do") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  auto stream = std::make_unique<Stream>(kDevice);
  detail::StreamBody* const lasting = &stream->body();
  MemoryBlock* held = allocate(*stream, 5000);
  MemoryBlock* cached = allocate(*stream, 9000);
  void* const held_data = held->data;
  void* const cached_data = cached->data;
  backend.touch(stream->handle(), held_data);
  release(cached);
  stream.reset();
  release(held);
  {
    Stream other(kDevice);
    CHECK(&other.body() != lasting);
  }
  backend.run_all();
  std::vector<std::unique_ptr<Stream>> streams;
  do streams.push_back(std::make_unique<Stream>(kDevice));
  while (&streams.back()->body() != lasting && streams.size() < 1000);
  const Stream& heir = *streams.back();
  MemoryBlock* first = allocate(heir, 5000);
  MemoryBlock* second = allocate(heir, 9000);
  CHECK(first->data == held_data);
  CHECK(second->data == cached_data);
  for (MemoryBlock* block : {first, second}) release(block);
  CHECK(memory_stats(kDevice).in_use_bytes == 0);
}

TEST_CASE("a use by a stream that is gone counts until its work is done") {
  Fresh fresh;
  manual::ManualBackend& backend = manual::backend();
  Stream stream(kDevice);
  MemoryBlock* block = allocate(stream, 5000);
  void* const data = block->data;
  {
    Stream user(Device::cuda(1));
    backend.touch(user.handle(), data);
    record_use(block, user);
  }
  release(block);
  MemoryBlock* other = allocate(stream, 5000);
  CHECK(other->data != data);
  backend.run_all();
  MemoryBlock* again = allocate(stream, 5000);
  CHECK(again->data == data);
  release(other);
  release(again);
}

TEST_CASE("synchronize waits for streams that are gone") {
  Fresh fresh;
  bool done = false;
  auto stream = std::make_unique<Stream>(kDevice);
  stream->enqueue([&] { done = true; });
  stream.reset();
  synchronize(kDevice);
  CHECK(done);
}

TEST_CASE("releasing on a lost device does not throw") {
  Fresh fresh;
  Stream stream(kDevice), user(kDevice);
  MemoryBlock* block = allocate(stream, 5000);
  record_use(block, user);
  manual::backend().fail_records = true;
  release(block);
  CHECK(memory_stats(kDevice).in_use_bytes == 0);
  CHECK_THROWS_AS(synchronize(kDevice), DeviceError);
  CHECK_THROWS_AS(empty_cache(kDevice), DeviceError);
  { Stream gone(kDevice); }
  manual::backend().fail_records = false;
  empty_cache(kDevice);
  CHECK(memory_stats(kDevice).cached_bytes == 0);
}

TEST_CASE("many streams that come and go leave nothing behind") {
  Fresh fresh;
  Stream keeper(kDevice);
  for (int i = 0; i < 200; ++i) {
    Stream stream(kDevice);
    MemoryBlock* block = allocate(stream, 5000);
    record_use(block, keeper);
    manual::backend().touch(keeper.handle(), block->data);
    release(block);
    if (i % 3 == 0) manual::backend().run_all(1);
  }
  manual::backend().run_all();
  empty_cache(kDevice);
  CHECK(memory_stats(kDevice).cached_bytes == 0);
  CHECK(manual::backend().unsafe_frees == 0);
}
