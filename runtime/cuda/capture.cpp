// capture(), and what it gives.
#include "lockstep/runtime/stream/capture.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep {
namespace detail {
namespace {

constexpr std::size_t kWordsBytes = 16 << 10, kAlignment = 16;

struct GraphValue {
  std::unique_ptr<Replayed> value;
  std::size_t at = 0;  // in the graph's words
};
// Device memory of values, with pinned memory of the same layout.
struct GraphWords {
  MemoryBlock* block;
  std::size_t begin, end;  // of all
};

class RecordedWork final : public GraphWork {
 public:
  explicit RecordedWork(Device of) : backend(lockstep::backend(of)), device_(of) {}
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;
  ~RecordedWork() override;
  Device device() const override { return device_; }
  void replay(const Stream& stream) override;

  Backend& backend;
  GraphHandle handle = nullptr;
  std::vector<StreamState*> pools;  // its memory
  std::vector<GraphWords> words;
  std::size_t words_end = 0;
  std::vector<GraphValue> values;
  Event last;                         // the last replay; before the first, what it comes after
  StreamBody* last_stream = nullptr;  // that it was on

 private:
  struct Pinned {
    std::byte* memory;
    Event used;
  };
  Pinned& idle_pinned();

  const Device device_;
  std::vector<std::unique_ptr<Pinned>> pinned_;
};

class Recording final : public Capture {
 public:
  explicit Recording(const Stream& stream);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() override;  // ends it, if nobody has
  std::unique_ptr<RecordedWork> finish();

  Device device() const noexcept override { return origin_.device(); }
  bool waits(const Stream& stream, const Event& event) override;
  void check_copy(const CopyArgs& args) override;
  bool records(const Stream& stream) const override;
  bool allocated(const MemoryBlock* block) const override;
  void* add(std::unique_ptr<Replayed> value, std::size_t bytes) override;

 private:
  void throw_refusal(const char* call, const std::string& what) override;
  void join(const Stream& stream);
  GraphHandle end(bool discard);

  const Stream origin_;
  Stream outside_;  // waits for what the graph comes after
  std::unique_ptr<RecordedWork> graph_;
  std::vector<StreamState*> streams_;  // that record
  std::exception_ptr refused_;
};

// What comes later on `stream` comes after what is on `other`, as the order checker sees it.
void note_order(const Stream& stream, const Stream& other) {
  if (OrderChecker* checker = OrderChecker::active()) [[unlikely]]
    checker->wait(stream.handle(), checker->record(other.handle()));  // on CUDA alone
}

// ---- while it is recorded

Recording::Recording(const Stream& stream) : origin_(stream) {
  const Device device = stream.device();
  LOCKSTEP_CHECK(!current_capture, "[capture] expected a thread that captures nothing, got a capture inside another");
  LOCKSTEP_CHECK(!is_shared(stream), "[capture] expected a stream of one's own, got the default stream of ", device,
                 ", on which other threads' work would get into the graph; make one: Stream(device)");
  if (device.type() == DeviceType::cuda) outside_ = Stream(device);  // others refuse in begin_capture
  graph_ = std::make_unique<RecordedWork>(device);
  if (outside_) outside_.wait_for(stream);  // on CUDA alone
  StreamState& state = state_of(stream);
  streams_.reserve(8);
  graph_->pools.reserve(8);
  graph_->pools.push_back(redirect_memory(state));
  streams_.push_back(&state);
  try {
    stream.backend().begin_capture(stream.handle());
  } catch (...) {
    restore_memory(state);
    throw;
  }
  current_capture = this;
}

Recording::~Recording() {
  if (current_capture != this) return;
  try {
    (void)end(true);
  } catch (...) {  // the error that brings us here is the one to be told
  }
}

GraphHandle Recording::end(bool discard) {
  GraphHandle handle = nullptr;
  std::exception_ptr error;
  const auto attempt = [&error](auto&& f) {
    try {
      f();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  };
  // Also where nothing is kept: a capture whose streams have not joined again does not end in order.
  attempt([&] {
    for (StreamState* stream : streams_) origin_.wait_for(*stream);  // on CUDA alone
  });
  if (discard) error = nullptr;  // there is another one to be told
  current_capture = nullptr;
  attempt([&] { handle = origin_.backend().end_capture(origin_.handle(), discard || error); });
  for (StreamState* stream : streams_) restore_memory(*stream);
  for (const GraphValue& each : graph_->values) each.value->captured();
  // What they have not been told to wait for inside.
  for (StreamState* stream : streams_) attempt([&] { Stream(*stream).wait_for(outside_); });  // on CUDA alone
  if (error && handle) origin_.backend().destroy_graph(std::exchange(handle, nullptr));
  if (error) std::rethrow_exception(error);
  return handle;
}

std::unique_ptr<RecordedWork> Recording::finish() {
  const GraphHandle handle = end(refused_ != nullptr);
  if (refused_) std::rethrow_exception(refused_);
  graph_->handle = handle;
  note_order(outside_, origin_);
  graph_->last.record(outside_);  // on CUDA alone
  graph_->last_stream = &outside_.body();
  return std::move(graph_);
}

void Recording::throw_refusal(const char* call, const std::string& what) {
  const std::string wait =
      cat("a wait of the host for ", origin_.device(), ", where nothing runs before the graph is replayed");
  auto error = std::make_exception_ptr(
      NotSupported(cat("[", call, "] expected what a capture can record, got ", what.empty() ? wait : what)));
  if (!refused_) refused_ = error;
  std::rethrow_exception(error);
}

bool Recording::records(const Stream& stream) const {
  return std::find(streams_.begin(), streams_.end(), &state_of(stream)) != streams_.end();
}

bool Recording::waits(const Stream& stream, const Event& event) {
  const bool inside = backend(event.device()).captured(event.handle());
  if (event.device().type() != stream.device().type()) {
    if (inside) refuse_wait("wait");
    return false;
  }
  if (records(stream)) {
    if (inside) return false;
    outside_.wait(event);  // on CUDA alone
    note_order(stream, outside_);
    return true;
  }
  if (inside) join(stream);
  return false;
}

void Recording::join(const Stream& stream) {
  if (stream.device() != origin_.device())
    refuse("wait", cat("a stream of ", stream.device(), " that waits for one of ", origin_.device()));
  if (is_shared(stream))
    refuse("wait", cat("the default stream of ", stream.device(), ", on which other threads' work would get in"));
  graph_->pools.reserve(graph_->pools.size() + 1);
  streams_.reserve(streams_.size() + 1);
  graph_->pools.push_back(redirect_memory(state_of(stream)));
  streams_.push_back(&state_of(stream));
}

void Recording::check_copy(const CopyArgs& args) {
  const Device here = origin_.device();
  const auto accelerator = [&](Device device) { return device.type() == here.type(); };
  if (!accelerator(args.source_device) && !accelerator(args.destination_device)) return;
  if (args.destination_device != here && !accelerator(args.destination_device))
    refuse("copy",
           "one into host memory (item(), to_vector(), to(cpu)), for which the host waits; copy after a replay");
  if (args.destination_device != here || (accelerator(args.source_device) && args.source_device != here))
    refuse("copy", cat("one from ", args.source_device, " to ", args.destination_device, ": a graph is of one device"));
  if (args.source_device != here && origin_.backend().pageable(args.source))
    refuse("copy", cat("one from host memory that is not pinned to ", here,
                       ": replays would copy what is there now; copy into a tensor before each replay"));
}

bool Recording::allocated(const MemoryBlock* block) const {
  return std::find(graph_->pools.begin(), graph_->pools.end(), block->home) != graph_->pools.end();
}

void* Recording::add(std::unique_ptr<Replayed> value, std::size_t bytes) {
  RecordedWork& graph = *graph_;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > 0 && (graph.words.empty() || graph.words.back().end - graph.words_end < bytes)) {
    const std::size_t size = std::max(bytes, kWordsBytes);
    graph.words.reserve(graph.words.size() + 1);
    const std::size_t begin = graph.words.empty() ? 0 : graph.words.back().end;
    graph.words.push_back({allocate(origin_, size), begin, begin + size});
    graph.words_end = begin;
  }
  graph.values.push_back({std::move(value), graph.words_end});
  if (bytes == 0) return nullptr;
  const GraphWords& words = graph.words.back();
  void* const place = static_cast<std::byte*>(words.block->data) + (graph.words_end - words.begin);
  graph.words_end += bytes;
  return place;
}

// ---- replays

RecordedWork::~RecordedWork() {
  try {
    // Not by a wait, which would take an error from who is to be told of it.
    const Deadline deadline = Deadline::after(kDefaultTimeout);
    while (last.progress() == Event::Progress::pending && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  } catch (...) {  // the device is lost
  }
  backend.destroy_graph(handle);
  for (const auto& each : pinned_) backend.free_pinned(each->memory);
  for (const GraphWords& each : words) release(each.block);
  values.clear();  // with what they keep
  for (StreamState* pool : pools) retire_memory(pool);
}

RecordedWork::Pinned& RecordedWork::idle_pinned() {
  for (const auto& each : pinned_)
    if (each->used.progress() != Event::Progress::pending) return *each;
  pinned_.reserve(pinned_.size() + 1);
  auto* const memory = static_cast<std::byte*>(backend.allocate_pinned(words.back().end));
  if (!memory) throw OutOfMemory(Device::cpu(), words.back().end, 0, 0);
  pinned_.push_back(std::make_unique<Pinned>(Pinned{memory, {}}));
  return *pinned_.back();
}

void RecordedWork::replay(const Stream& stream) {
  if (last_stream != &stream.body()) stream.wait(last);  // on CUDA alone
  Pinned* const filled = words.empty() ? nullptr : &idle_pinned();
  std::size_t written = 0;
  try {
    for (const GraphValue& each : values) {
      each.value->write(filled ? filled->memory + each.at : nullptr);
      ++written;
    }
    if (filled) {
      for (const GraphWords& each : words)
        backend.copy({each.block->data, device_, filled->memory + each.begin, Device::cpu(), each.end - each.begin},
                     stream.handle());
      filled->used.record(stream);  // on CUDA alone
    }
    backend.launch_graph(handle, stream.handle());
  } catch (...) {
    // What is enqueued of the replay uses the graph, which may go now.
    settle(backend, device_, stream.handle());
    for (const GraphValue& each : std::span(values).first(written)) each.value->given_up();
    throw;
  }
  for (const GraphValue& each : values) each.value->replayed(stream);
  last.record(stream);  // on CUDA alone
  last_stream = &stream.body();
}

}  // namespace

Graph capture(const Stream& stream, const std::function<void()>& f) {
  LOCKSTEP_CHECK(stream, "[capture] expected a stream, got none");
  Recording recording(stream);
  {
    const StreamScope scope(stream);  // on CUDA alone
    f();
  }
  return Graph(recording.finish());
}

}  // namespace detail
}  // namespace lockstep
