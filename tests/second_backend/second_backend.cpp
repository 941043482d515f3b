// A second backend, made as CONTRIBUTING's recipe says and put in the place of CUDA devices: an accelerator whose
// streams work on their own, with few kernels. What runs on it needs the two seams alone. Its streams are those of the
// host devices (runtime/host/host_stream.h): threads, whose errors travel and surface as the contract says.
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/kernels/api.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/runtime/caller.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/host/host_stream.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "support/devices.h"

namespace {

using namespace lockstep;
using detail::Completion;
using detail::HostStream;

// Memory of a device has addresses that fault when the host uses them: no processor takes this bit. Work of a device
// takes it off; addresses of the host stay what they are.
constexpr std::uintptr_t kOnDevice = std::uintptr_t{1} << 52;
template <class T>
T* to_device(T* memory) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(memory) | kOnDevice);
}
template <class T>
T* to_host(T* memory) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(memory) & ~kOnDevice);
}

using Present = ArgsList<CastArgs, FillArgs, BinaryArgs, MatmulArgs>;

// Copies of elements, fills, sums of two tensors and products of matrices.
struct Kernels {
  // All others, also those that are still to come.
  struct Absent {
    template <class Args>
    static constexpr bool contains = !Present::contains<Args>;
  };

  // The host's arithmetic, on memory that the device knows by another address.
  template <class Args>
  requires(Present::contains<Args>) static void enqueue(const Stream& stream, const Args& args) {
    if constexpr (std::is_same_v<Args, BinaryArgs>) {
      if (args.op != BinaryOp::add) kernels::detail::fail_missing(op_name(args.op), args.x.view.dtype, stream.device());
    }
    Args here = args;
    here.views([](const auto& use) {
      View& view = const_cast<View&>(use.view);
      view.data = to_host(view.data);
    });
    kernels::host::Kernels::enqueue(stream, here);
  }
};

struct Mark {  // an event
  bool timing;
  std::mutex mutex;
  std::shared_ptr<Completion> completion;  // of the last record

  std::shared_ptr<Completion> last() {
    const std::lock_guard lock(mutex);
    return completion;
  }
};

class SecondBackend final : public detail::HostBackend {
 public:
  SecondBackend(int devices, std::size_t memory_bytes)
      : HostBackend(DeviceType::cuda, std::vector<DeviceLayout>(static_cast<std::size_t>(devices), {memory_bytes, 1}),
                    {.synchronous = false, .checked = false}),
        properties_{.name = "second", .total_memory_bytes = memory_bytes} {}

  const DeviceProperties& properties(int) const override { return properties_; }  // not memory of the host
  void* allocate(int index, std::size_t bytes) override {
    void* const memory = HostBackend::allocate(index, bytes);
    return memory ? to_device(memory) : nullptr;
  }
  void free(int index, void* memory) noexcept override { HostBackend::free(index, to_host(memory)); }

  StreamHandle create_stream(int index, StreamPriority) override {
    return reinterpret_cast<StreamHandle>(new HostStream(Device::cuda(index), detail::Schedule(0, 0), kDefaultTimeout));
  }
  void destroy_stream(StreamHandle stream) noexcept override { on(stream).close(); }
  bool query_stream(StreamHandle stream) override { return on(stream).idle(); }
  void* native_stream(StreamHandle stream) override { return stream; }

  EventHandle create_event(int, bool timing) override {
    return reinterpret_cast<EventHandle>(new Mark{.timing = timing, .mutex = {}, .completion = {}});
  }
  void destroy_event(EventHandle event) noexcept override { delete &mark(event); }
  void record_event(EventHandle event, StreamHandle stream) override {
    auto completion = std::make_shared<Completion>();
    on(stream).record(completion);
    const std::lock_guard lock(mark(event).mutex);
    mark(event).completion = std::move(completion);
  }
  void stream_wait_event(StreamHandle stream, EventHandle event) override {
    if (auto completion = mark(event).last()) on(stream).wait_for(std::move(completion));
  }
  bool query_event(EventHandle event) override {
    const auto completion = mark(event).last();
    return !completion || completion->finished();
  }
  bool event_failed(EventHandle event) override {
    const auto completion = mark(event).last();
    return completion && completion->finished() && completion->failure();
  }
  bool wait_event(EventHandle event, Deadline deadline) override {
    const auto completion = mark(event).last();
    if (!completion) return true;
    if (!completion->wait(deadline)) return false;
    if (completion->failure()) completion->failure()->surface();
    return true;
  }
  double elapsed_milliseconds(EventHandle begin, EventHandle end) override {
    const auto first = mark(begin).last(), last = mark(end).last();
    LOCKSTEP_CHECK(mark(begin).timing && mark(end).timing && first && last && first->finished() && last->finished(),
                   "[elapsed_milliseconds] expected two recorded timing events, got one that is not");
    return std::chrono::duration<double, std::milli>(last->time() - first->time()).count();
  }
  bool abandoned() const noexcept override { return detail::library_threads.load() != detail::Threads::run; }

  void copy(const CopyArgs& args, StreamHandle stream) override {
    if (args.bytes == 0) return;
    on(stream).run([args] { std::memmove(to_host(args.destination), to_host(args.source), args.bytes); },
                   {.name = "copy", .kind = trace::Kind::copy, .bytes = args.bytes, .source = args.source_device});
  }
  void fill_bytes(void* memory, int value, std::size_t bytes, StreamHandle stream) override {
    if (bytes == 0) return;
    on(stream).run([=] { std::memset(to_host(memory), value, bytes); },
                   {.name = "fill", .kind = trace::Kind::fill, .bytes = bytes, .source = {}});
  }
  void enqueue(StreamHandle stream, UniqueFunction task) override { on(stream).run(std::move(task)); }

 private:
  static HostStream& on(StreamHandle stream) { return *reinterpret_cast<HostStream*>(stream); }
  static Mark& mark(EventHandle event) { return *reinterpret_cast<Mark*>(event); }

  const DeviceProperties properties_;
};

const bool installed = [] {
  // As many devices as the cases know that hold on every kind of device.
  static constexpr KernelTable kTable = table_of<Kernels>();
  static auto* const made = new SecondBackend(8, std::size_t{64} << 20);
  detail::install_backend(*made);
  kernels::detail::install_table(DeviceType::cuda, kTable);
  detail::callers_matter = true;  // errors are told to whoever has lost work to them
  configure_host({.devices = 2});
  set_log_level(LogLevel::error);
  return true;
}();

}  // namespace

namespace support {

lockstep::DeviceType device_type() { return lockstep::DeviceType::cuda; }

}  // namespace support
