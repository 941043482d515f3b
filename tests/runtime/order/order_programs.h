// Operations for tests of the order checker: streams of a strict backend whose work says what it reads and writes.
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "lockstep/runtime/order/order_checker.h"
#include "runtime/backend_streams.h"

namespace backend_streams {

class StrictStream : public TestStream {
 public:
  StrictStream(Backend& backend, int index) : TestStream(backend, index), device_(Device::host(index)) {}

  MemoryUse read(const void* data, std::size_t bytes) const { return MemoryUse::read(data, bytes, device_); }
  MemoryUse write(const void* data, std::size_t bytes) const { return MemoryUse::write(data, bytes, device_); }

  // What a kernel does: say what it uses, then enqueue it.
  void run(const char* operation, std::initializer_list<MemoryUse> uses, UniqueFunction task = {}) {
    detail::OrderChecker::active()->use(handle(), operation, std::span(uses.begin(), uses.size()), {"test.cpp", 1});
    enqueue([task = std::move(task)]() mutable {
      if (task) task();
    });
  }

 private:
  Device device_;
};

// Memory of a host device, given back at the end: what uses it must have been waited for by then.
class DeviceMemory {
 public:
  DeviceMemory(Backend& backend, int index, std::size_t bytes)
      : backend_(backend), index_(index), data_(static_cast<std::byte*>(backend.allocate(index, bytes))) {}
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (data_) backend_.free(index_, data_);
  }
  std::byte* data() const { return data_; }
  operator std::byte*() const { return data_; }  // NOLINT: it is a pointer with a lifetime
  void free() { backend_.free(index_, std::exchange(data_, nullptr)); }

 private:
  Backend& backend_;
  int index_;
  std::byte* data_;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace backend_streams
