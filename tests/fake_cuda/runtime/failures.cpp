// Calls that fail halfway: what was enqueued before them must be over, or in order, once the error is thrown.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};
using Owned = std::unique_ptr<MemoryBlock, Release>;

constexpr std::size_t kBytes = std::size_t{5} << 19;  // three pieces of staging

void copy_there_and_back(Device from, Device to, const void* sent, void* received) {
  const Stream source = default_stream(from), destination = default_stream(to), host = default_stream(Device::cpu());
  const Owned here(allocate(source, kBytes)), there(allocate(destination, kBytes));
  copy_bytes({here->data, from, sent, Device::cpu(), kBytes}, host, source);
  copy_bytes({there->data, to, here->data, from, kBytes}, source, destination);
  copy_bytes({received, Device::cpu(), there->data, to, kBytes}, destination, host);
}

// What broke a rule: nothing.
std::string broken_rules() {
  std::string text;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) text += to_string(failure) + '\n';
  return text;
}

std::vector<int> failures_of(const char* call, Device from, Device to) {
  std::vector<unsigned char> sent(kBytes), received(kBytes);
  std::vector<int> bad;
  for (int nth = 1; nth <= 16; ++nth) {
    // New values each time, others in each stretch and at its place in each piece of staging: whole stretches at once,
    // since sanitizers look at each access.
    constexpr std::size_t kStretch = 1 << 12;
    for (std::size_t i = 0; i < kBytes; i += kStretch)
      std::memset(&sent[i], static_cast<int>(i / kStretch % 251) + nth, kStretch);
    fake_cuda::inject({.call = call, .nth = nth, .error = cudaErrorInvalidValue});
    const auto before = fake_cuda::calls_of(call);
    bool told = true;
    try {
      copy_there_and_back(from, to, sent.data(), received.data());
    } catch (const DeviceError& error) {
      told = error.code == cudaErrorInvalidValue && (error.device == from || error.device == to) &&
             std::strstr(error.what(), call) != nullptr;
    }
    const bool enough = fake_cuda::calls_of(call) - before >= nth;
    fake_cuda::forget_injections();
    bool good = told;
    try {
      synchronize(from);
      synchronize(to);
      copy_there_and_back(from, to, sent.data(), received.data());
      good = good && std::memcmp(sent.data(), received.data(), kBytes) == 0;
    } catch (const Error&) {
      good = false;  // what was in flight met what came later
    }
    if (!good || !broken_rules().empty()) bad.push_back(nth);
    if (!enough) break;  // there are no more such calls to fail
  }
  return bad;
}

TEST_CASE("a call that fails in the middle of a copy leaves nothing in flight") {
  const Device first = Device::cuda(0), second = Device::cuda(1), third = Device::cuda(2);
  int current = 0;
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  std::vector<unsigned char> sent(kBytes), received(kBytes);
  for (const auto& [from, to] : {std::pair{first, second}, std::pair{second, first}, std::pair{second, third}}) {
    copy_there_and_back(from, to, sent.data(), received.data());  // the way there is looked for once
    for (const char* call : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaEventQuery", "cudaMemcpyAsync",
                             "cudaMemcpyPeerAsync", "cudaSetDevice", "cudaGetDevice"}) {
      CAPTURE(call, to_string(from), to_string(to));
      CHECK(failures_of(call, from, to) == std::vector<int>{});
    }
  }
  REQUIRE(cudaSetDevice(current) == cudaSuccess);  // putting it back was among the calls that failed
}

TEST_CASE("an edge that cannot be made is made by the host") {
  const Device device = Device::cuda(3);
  Stream first(device), second(device);
  const Owned block(allocate(first, 64));
  const auto fill = [&](const Stream& stream, int value) {
    backend(device).fill_bytes(block->data, value, 64, stream.handle());
  };
  for (const char* call : {"cudaEventRecord", "cudaStreamWaitEvent"}) {
    CAPTURE(call);
    fill(first, 1);
    fake_cuda::inject({.call = call, .error = cudaErrorInvalidValue});
    CHECK_THROWS_AS(second.wait_for(first), DeviceError);
    fill(second, 2);
    first.wait_for(second);
    CHECK(broken_rules() == "");
  }
  synchronize(first);
}

// One of the edge, and then of every question whether the work before it is through.
TEST_CASE("who waits in the place of an edge does not ask for ever") {
  const Device device = Device::cuda(3);
  Stream first(device), second(device);
  constexpr int kErrors = 20'000, kFew = 50;
  for (const auto& [call, question] :
       {std::pair{"cudaEventRecord", "cudaStreamQuery"}, std::pair{"cudaStreamWaitEvent", "cudaEventQuery"}}) {
    CAPTURE(call);
    const int before = fake_cuda::calls_of(question);
    fake_cuda::inject({.call = call, .error = cudaErrorInvalidValue});
    fake_cuda::inject({.call = question, .error = cudaErrorInvalidResourceHandle, .times = kErrors});
    CHECK_THROWS_AS(second.wait_for(first), DeviceError);
    fake_cuda::forget_injections();
    CHECK(fake_cuda::calls_of(question) - before < kFew);
    CHECK(broken_rules() == "");
  }
}

// Alone in its program (ctest: fake_cuda/unloading): the device is lost for good.
TEST_CASE("a runtime that is being unloaded has lost its devices", "[.unloading]") {
  const Device device = Device::cuda(1);
  Stream stream(device);
  fake_cuda::break_device(1, cudaErrorCudartUnloading);
  CHECK_THROWS_AS(synchronize(stream), DeviceError);
  CHECK(backend(device).is_lost(1));
}

TEST_CASE("a block whose use by another stream cannot be marked is not given away before that use is over") {
  const Device device = Device::cuda(3);
  Stream home(device), other(device);
  for (const char* call : {"cudaEventRecord", "cudaGetDevice"}) {
    CAPTURE(call);
    {
      const Owned block(allocate(home, 64));
      other.wait_for(home);
      record_use(block.get(), other);
      backend(device).fill_bytes(block->data, 1, 64, other.handle());
      fake_cuda::inject({.call = call, .error = cudaErrorInvalidValue});
    }
    for (int i = 0; i < 4; ++i) {
      const Owned next(allocate(home, 64));
      backend(device).fill_bytes(next->data, 2, 64, home.handle());
    }
    CHECK(broken_rules() == "");
  }
  synchronize(device);
}

// Alone in its program (ctest: fake_cuda/lost_user): the device is lost for good.
TEST_CASE("memory that a lost device was using serves its own device", "[.lost_user]") {
  const Device device = Device::cuda(1), user = Device::cuda(2);
  Stream home(device), other(user);
  const auto used_block = [&] {
    Owned block(allocate(home, 64));
    other.wait_for(home);
    record_use(block.get(), other);
    return block;
  };
  {
    const Owned before = used_block(), beyond = used_block();
    release(used_block().release());  // marked before the loss
    fake_cuda::break_device(2, cudaErrorIllegalAddress);
  }
  CHECK_THROWS_AS(synchronize(other), DeviceError);
  CHECK(memory_stats(device).in_use_bytes == 0);
  for (int i = 0; i < 3; ++i) {
    const Owned block(allocate(home, std::size_t{1} << (10 + i)));
    backend(device).fill_bytes(block->data, 1, 1024, home.handle());
    CHECK_NOTHROW(synchronize(home));
  }
  CHECK_NOTHROW(empty_cache(device));
  CHECK(fake_cuda::used_bytes(1) == 0);
}

// Alone in its program (ctest: fake_cuda/loss_told): the device is lost for good.
TEST_CASE("who waits for work that came after a lost device's is told, once each", "[.loss_told]") {
  const Device device = Device::cuda(1), other = Device::cuda(2);
  Stream source(device), destination(other);
  const Owned here(allocate(source, 64)), there(allocate(destination, 64));
  const auto told_of = [&] {
    try {
      synchronize(destination);
      return Device::cpu();  // nobody
    } catch (const DeviceError& error) {
      return error.device;
    }
  };
  CHECK(told_of() == Device::cpu());
  std::vector<Device> told;
  std::atomic<int> turn{0};
  const auto wait_for_turn = [&](int mine) {
    while (turn != mine) std::this_thread::yield();
  };
  std::thread witness([&] {
    backend(other).fill_bytes(there->data, 1, 64, destination.handle());
    synchronize(destination);
    turn = 1;
    wait_for_turn(2);
    told.push_back(told_of());
    told.push_back(told_of());
  });
  wait_for_turn(1);
  backend(device).fill_bytes(here->data, 1, 64, source.handle());
  copy_bytes({there->data, other, here->data, device, 64}, source, destination);
  fake_cuda::break_device(1, cudaErrorIllegalAddress);
  CHECK(told_of() == device);
  CHECK(told_of() == Device::cpu());
  turn = 2;
  witness.join();
  CHECK(told == std::vector<Device>{device, Device::cpu()});
  Device stranger = device;
  std::thread([&] { stranger = told_of(); }).join();
  CHECK(stranger == Device::cpu());
}

// Alone in its program (ctest: fake_cuda/first_use): devices start once.
TEST_CASE("a device that cannot start says why, and starts at the next try", "[.first_use]") {
  const Device device = Device::cuda(1);
  fake_cuda::inject({.call = "cudaHostAlloc", .error = cudaErrorMemoryAllocation});
  CHECK_THROWS_AS(Stream(device), OutOfMemory);
  fake_cuda::inject({.call = "cudaHostGetDevicePointer", .error = cudaErrorInvalidValue});
  CHECK_THROWS_AS(Stream(device), DeviceError);
  CHECK(fake_cuda::alive().pinned_allocations == 0);
  CHECK_NOTHROW(Stream(device));
}

}  // namespace
