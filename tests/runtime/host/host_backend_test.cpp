#include "lockstep/runtime/host/host_backend.h"

#include <cstdint>
#include <memory>

#include "lockstep/runtime/stream/stream.h"
#include "support/catch.h"

using namespace lockstep;

TEST_CASE("each virtual device has a memory of its own") {
  const std::unique_ptr<Backend> made(detail::make_host_backend({.devices = 2, .memory_bytes = {4096, 1000}}));
  CHECK(made->allocate(0, 4097) == nullptr);
  void* first = made->allocate(0, 4000);
  REQUIRE(first);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 256 == 0);
  CHECK(made->allocate(0, 97) == nullptr);
  void* second = made->allocate(0, 96);
  REQUIRE(second);
  void* elsewhere = made->allocate(1, 1000);
  REQUIRE(elsewhere);
  made->free(1, first);  // not that device's: nothing happens
  CHECK(made->allocate(0, 1) == nullptr);
  made->free(0, first);
  void* third = made->allocate(0, 4000);
  CHECK(third);
  CHECK(made->allocate(0, static_cast<std::size_t>(-1)) == nullptr);
  made->free(0, second);
  made->free(0, third);
  made->free(1, elsewhere);
  made->free(0, nullptr);
}

TEST_CASE("pinned memory of the host is memory") {
  Backend& host = backend(DeviceType::host);
  void* memory = host.allocate_pinned(1000);
  REQUIRE(memory);
  host.fill_bytes(memory, 5, 1000, default_stream(Device::host(0)).handle());
  synchronize(Device::host(0));
  CHECK(static_cast<unsigned char*>(memory)[999] == 5);
  host.free_pinned(memory);
  CHECK(host.allocate_pinned(static_cast<std::size_t>(-1)) == nullptr);
  void* empty = host.allocate_pinned(0);
  host.free_pinned(empty);
}

TEST_CASE("host devices reach each other") {
  Backend& host = backend(DeviceType::host);
  CHECK(host.type() == DeviceType::host);
  CHECK(host.device_count() == 8);
  CHECK(host.can_access_peer(0, 7));
  CHECK_NOTHROW(host.enable_peer_access(0, 7));
  CHECK(backend(DeviceType::cpu).device_count() == 1);
}
