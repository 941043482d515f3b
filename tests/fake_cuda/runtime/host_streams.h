// What tests/runtime/host_streams.h gives the tests of the contract, for the CUDA devices: there is one backend, and an
// event belongs to the device of the stream that records it.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "runtime/gate.h"

namespace host_streams {

using namespace lockstep;

inline constexpr HostMode kAsyncModes[] = {HostMode::async};

class Backends {
 public:
  explicit Backends(const HostOptions&) { (void)all_devices(); }
  static void keep(Backend*) {}
  Backend& operator*() const { return backend(DeviceType::cuda); }
  Backend* operator->() const { return &backend(DeviceType::cuda); }
};

class TestEvent {
 public:
  explicit TestEvent(Backend& backend, bool timing = false) : backend_(backend), timing_(timing) {}
  TestEvent(const TestEvent&) = delete;
  ~TestEvent() {
    if (handle_) backend_.destroy_event(handle_);
  }
  EventHandle handle(int index = 0) const {
    if (handle_ && index != index_ && index >= 0) {
      backend_.destroy_event(handle_);
      handle_ = nullptr;
    }
    if (!handle_) handle_ = backend_.create_event(index_ = index, timing_);
    return handle_;
  }
  EventHandle current() const { return handle_ ? handle_ : handle(); }
  bool query() const { return backend_.query_event(current()); }
  bool wait(Deadline deadline = soon()) const { return backend_.wait_event(current(), deadline); }

 private:
  Backend& backend_;
  bool timing_;
  mutable EventHandle handle_ = nullptr;
  mutable int index_ = 0;
};

class TestStream {
 public:
  TestStream(Backend& backend, int index) : backend_(backend), index_(index), handle_(backend.create_stream(index)) {}
  TestStream(const TestStream&) = delete;
  ~TestStream() { backend_.destroy_stream(handle_); }
  StreamHandle handle() const { return handle_; }
  template <class Task>
  void enqueue(Task task) {
    backend_.enqueue(handle_, std::move(task));
  }
  void record(const TestEvent& event) { backend_.record_event(event.handle(index_), handle_); }
  void wait(const TestEvent& event) { backend_.stream_wait_event(handle_, event.current()); }
  void after(TestStream& other) {
    TestEvent event(backend_);
    other.record(event);
    wait(event);
  }
  bool query() { return backend_.query_stream(handle_); }
  void synchronize() {
    TestEvent event(backend_);
    record(event);
    if (!event.wait()) throw TimeoutError("[test] expected the stream to finish");
  }

 private:
  Backend& backend_;
  int index_;
  StreamHandle handle_;
};

}  // namespace host_streams
