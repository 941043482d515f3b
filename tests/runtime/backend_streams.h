// A backend with streams and events that go with it: on host devices one that the test has for itself, on CUDA devices
// the only one.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "runtime/gate.h"
#include "support/devices.h"

namespace backend_streams {

using namespace lockstep;

// The modes in which a device works on its own; one stands for CUDA devices, which know no modes.
inline std::vector<HostMode> async_modes() {
  if (support::device_type() == DeviceType::cuda) return {HostMode::async};
  return {HostMode::async, HostMode::strict};
}

class Backends {  // never destroyed: streams may still be at work
 public:
  explicit Backends(HostOptions options) {
    if (support::device_type() == DeviceType::cuda) {
      backend_ = &backend(DeviceType::cuda);
      return;
    }
    if (options.devices == 0) options.devices = 4;
    if (options.memory_bytes.empty()) options.memory_bytes = {std::size_t{1} << 26};
    backend_ = detail::make_host_backend(options);
    keep(backend_);
  }
  // Backends live for ever; this is where.
  static void keep(Backend* backend) {
    static auto* const kept = new std::vector<Backend*>;
    kept->push_back(backend);
  }
  Backend& operator*() const { return *backend_; }
  Backend* operator->() const { return backend_; }

 private:
  Backend* backend_;
};

class TestEvent {
 public:
  explicit TestEvent(Backend& backend, bool timing = false)
      : backend_(backend), timing_(timing), handle_(backend.create_event(0, timing)) {}
  TestEvent(const TestEvent&) = delete;
  ~TestEvent() { backend_.destroy_event(handle_); }
  EventHandle handle() const { return handle_; }
  // For a stream of the device to record: an event of CUDA's belongs to one device.
  EventHandle handle_on(int index) {
    if (index != index_ && backend_.type() == DeviceType::cuda) {
      backend_.destroy_event(handle_);
      handle_ = backend_.create_event(index, timing_);
      index_ = index;
    }
    return handle_;
  }
  bool query() const { return backend_.query_event(handle_); }
  bool wait(Deadline deadline = soon()) const { return backend_.wait_event(handle_, deadline); }

 private:
  Backend& backend_;
  bool timing_;
  int index_ = 0;
  EventHandle handle_;
};

class TestStream {
 public:
  TestStream(Backend& backend, int index)
      : backend_(backend), index_(index), handle_(backend.create_stream(index, StreamPriority::normal)) {}
  TestStream(const TestStream&) = delete;
  ~TestStream() { backend_.destroy_stream(handle_); }
  StreamHandle handle() const { return handle_; }
  template <class Task>
  void enqueue(Task task) {
    backend_.enqueue(handle_, std::move(task));
  }
  void record(TestEvent& event) { backend_.record_event(event.handle_on(index_), handle_); }
  void wait(const TestEvent& event) { backend_.stream_wait_event(handle_, event.handle()); }
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

}  // namespace backend_streams
