#include "lockstep/parallel/replicas/replica_graphs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/module_internals.h"

namespace lockstep::detail {

// What is known of the calls with arguments of one form.
struct ReplicaGraphs::Entry {
  std::vector<std::int64_t> form;
  bool busy = false;    // some thread calls it, and alone looks at what follows
  std::string refused;  // why it cannot be captured
  Graph graph;
  std::vector<Tensor> arguments, results;  // the graph's own
  std::shared_ptr<const void> result;
  Event used;  // by the last call

  bool is_open() const { return !graph && refused.empty(); }  // to be captured
};

struct ReplicaGraphs::OnDevice {
  Stream stream;               // that is captured: no other's, since whoever writes the slots may wait for it
  bool recording = false;      // some thread captures it
  std::vector<Tensor> memory;  // of the slots, which all graphs use
  Graphs entries;              // the one used last first
};

namespace {

// How many elements the memory of a tensor has from its first to its last; none where some lie on others.
std::optional<std::int64_t> extent_of(const Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // strides and sizes
  for (int i = 0; i < tensor.rank(); ++i)
    if (tensor.shape()[i] > 1) steps.emplace_back(tensor.strides()[i], tensor.shape()[i]);
  std::sort(steps.begin(), steps.end());
  std::int64_t last = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= last) return std::nullopt;
    last += (size - 1) * stride;
  }
  return tensor.count() == 0 ? 0 : last + 1;
}

// Fresh memory for elements that lie as those of `like` do: kernels are chosen by that.
Tensor alike(const Tensor& like, std::int64_t extent) {
  const auto bytes = static_cast<std::size_t>(extent) * size_of(like.dtype());
  return Tensor::over(Storage::allocate(like.device(), bytes), like.dtype(), like.shape(), like.strides());
}

Tensor copy_of(const Tensor& source) {
  const auto extent = extent_of(source);
  if (!extent) return source.clone();
  Tensor copy = alike(source, *extent);
  copy.copy_(source);
  return copy;
}

bool is_same_memory(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return x.data() == y.data() && x.dtype() == y.dtype() && x.shape() == y.shape() && x.strides() == y.strides();
  });
}

std::vector<Tensor> slots_on(const ModuleSlots& slots, Device device) {
  std::vector<Tensor> memory;
  memory.reserve(slots.parameters().size() + slots.buffers().size());
  for (const auto* list : {&slots.parameters(), &slots.buffers()})
    for (const Parameter& each : *list) memory.push_back(each.on(device));
  return memory;
}

std::vector<std::uint64_t> versions_of(const std::vector<Tensor>& tensors) {
  std::vector<std::uint64_t> versions;
  for (const Tensor& tensor : tensors) versions.push_back(tensor.version());
  return versions;
}

}  // namespace

void TensorList::add_tensor(const Tensor& tensor) {
  form.push_back(tensor.defined() ? tensor.rank() : -1);
  if (!tensor.defined()) return;
  form.push_back(static_cast<std::int64_t>(tensor.dtype()));
  form.insert(form.end(), tensor.shape().begin(), tensor.shape().end());
  form.insert(form.end(), tensor.strides().begin(), tensor.strides().end());
  tensors.push_back(tensor);
}

// The call that has an entry.
class ReplicaGraphs::Use {
 public:
  Use(ReplicaGraphs& graphs, OnDevice& here, Entry& entry)
      : graphs_(graphs), here_(here), entry_(entry), records_(entry.is_open()) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    const std::lock_guard lock(graphs_.mutex_);
    entry_.busy = false;
    if (records_) here_.recording = false;
  }
  bool records() const { return records_; }

 private:
  ReplicaGraphs& graphs_;
  OnDevice& here_;
  Entry& entry_;
  const bool records_;
};

ReplicaGraphs::ReplicaGraphs(std::int64_t most) : most_(static_cast<std::size_t>(most)) {}
ReplicaGraphs::~ReplicaGraphs() = default;

void ReplicaGraphs::watch(const ModuleBase& module) {
  if (!shown_.load(std::memory_order_acquire)) return;
  std::vector<std::shared_ptr<ModuleState>> states;
  std::vector<const void*> members;
  MemberVisitor visitor;
  visitor.module = [&](ModuleBase& each) {
    states.push_back(ModuleInternals::state(each));
    members.push_back(states.back().get());
  };
  visitor.parameter = [&](std::string_view, Parameter& each, bool) { members.push_back(each.body()); };
  Graphs gone;
  const std::lock_guard watching(watching_);  // others wait for what it finds
  if (!shown_.load(std::memory_order_acquire)) return;
  visitor.visit(module);
  bool same = false;
  {
    const std::lock_guard lock(mutex_);
    modules_.swap(states);
    same = std::exchange(members_, members) == members;
  }
  if (!same) gone = take_all();
  shown_.store(false, std::memory_order_release);
}

void ReplicaGraphs::forget() { (void)take_all(); }

// They go after the locks, since they wait for their replays.
ReplicaGraphs::Graphs ReplicaGraphs::take_all() {
  Graphs all;
  const std::lock_guard lock(mutex_);
  for (auto& [at, here] : devices_) {
    all.splice(all.end(), here->entries);
    here->memory.clear();
  }
  return all;
}

ReplicaGraphStats ReplicaGraphs::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void ReplicaGraphs::note_ordinary(Device device, const std::string& why) {
  const std::lock_guard lock(mutex_);
  ++stats_.ordinary;
  stats_.why = cat(device, ": ", why);
}

// Why no graph can do this call, whatever it enqueues; empty where one may.
std::string ReplicaGraphs::unfit(Device device, const TensorList& arguments) const {
  const ThreadContext& context = thread_context();
  if (GradMode::enabled()) return "gradients are recorded: call it in NoGrad or InferenceMode";
  if (!can_capture(device)) return "the device has no graphs";
  if (current_capture) return "a capture is in progress";
  if (context.substitution) return "tensors stand in for its parameters";
  if (arguments.others) return "an argument is no tensor";
  for (const Tensor& tensor : arguments.tensors) {
    if (tensor.device() != device) return cat("an argument is on ", tensor.device());
    if (!extent_of(tensor)) return "elements of an argument lie on others";
  }
  const std::lock_guard lock(mutex_);
  for (const auto& module : modules_) {
    if (context.training == 1 || (context.training < 0 && module->training.load(std::memory_order_relaxed)))
      return "a module is in training mode";
    if (module->has_hooks.load(std::memory_order_acquire)) return "a module has hooks";
  }
  return {};
}

// The entry for this call, which nobody else uses until its Use ends. Null, and why, where the call is ordinary.
std::shared_ptr<ReplicaGraphs::Entry> ReplicaGraphs::take(OnDevice& here, const std::vector<Tensor>& memory,
                                                          std::vector<std::int64_t> form, std::string& why) {
  Graphs gone;  // after the lock
  const std::lock_guard lock(mutex_);
  Graphs& entries = here.entries;
  if (!is_same_memory(here.memory, memory)) {
    gone.splice(gone.end(), entries);
    here.memory.clear();
    for (const Tensor& each : memory) here.memory.push_back(each.detach());
  }
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& each) { return each->form == form; });
  if (found == entries.end()) {
    entries.push_front(std::make_shared<Entry>());
    entries.front()->form = std::move(form);
    if (entries.size() > most_) gone.splice(gone.end(), entries, std::prev(entries.end()));
    why = "the first call with arguments of this form";
    return nullptr;
  }
  entries.splice(entries.begin(), entries, found);
  Entry& entry = *entries.front();
  if (entry.busy || (entry.is_open() && here.recording)) {
    why = "another thread uses the graph, or captures one";
  } else if (!entry.refused.empty()) {
    why = entry.refused;
  } else {
    entry.busy = true;
    if (entry.is_open()) here.recording = true;
    return entries.front();
  }
  return nullptr;
}

void ReplicaGraphs::capture(Entry& entry, const Stream& stream, const std::vector<Tensor>& memory,
                            const TensorList& arguments, const Record& record) try {
  std::vector<Tensor> own;
  {
    const StreamScope scope(stream);  // on CUDA alone
    for (const Tensor& tensor : arguments.tensors) own.push_back(alike(tensor, *extent_of(tensor)));
  }
  const std::vector<std::uint64_t> versions = versions_of(own), versions_of_slots = versions_of(memory);
  TensorList results;
  auto [graph, result] = lockstep::capture(stream, [&] {
    // What is cast inside is the graph's, and a forward that wants gradients all the same throws.
    const AutocastThread casts;
    const InferenceMode inference;
    return record(own, results);
  });
  if (results.others) throw NotSupported("a result is no tensor");
  if (versions_of(own) != versions) throw NotSupported("its forward writes to an argument");
  // Replays would not come after the copies of what they write to other devices.
  if (versions_of(memory) != versions_of_slots) throw NotSupported("its forward writes to a parameter or buffer");
  for (const Tensor& tensor : results.tensors)
    if (tensor.device() != stream.device()) throw NotSupported(cat("a result is on ", tensor.device()));
  entry.arguments = std::move(own);
  entry.results = std::move(results.tensors);
  entry.result = std::move(result);
  entry.graph = std::move(graph);
} catch (const Error&) {  // the ordinary call throws it, if it is about that; what is not ours comes through
  entry.refused = describe(std::current_exception());
}

// What its results are for those arguments.
std::vector<Tensor> ReplicaGraphs::replay(Entry& entry, const Stream& stream, const TensorList& arguments) {
  stream.wait(entry.used);  // on CUDA alone
  for (const auto* list : {&entry.arguments, &entry.results})
    for (const Tensor& tensor : *list) tensor.storage()->record_use(stream);  // on CUDA alone
  for (std::size_t i = 0; i < entry.arguments.size(); ++i) entry.arguments[i].copy_(arguments.tensors[i]);
  entry.graph.replay(stream);
  std::vector<Tensor> copies;
  for (const Tensor& result : entry.results) copies.push_back(copy_of(result));
  entry.used.record(stream);  // on CUDA alone
  return copies;
}

std::shared_ptr<const void> ReplicaGraphs::call(const ModuleSlots& slots, Device device, const TensorList& arguments,
                                                const Record& record, std::vector<Tensor>& results) {
  const auto ordinary = [&](const std::string& why) {
    note_ordinary(device, why);
    return nullptr;
  };
  std::string why = unfit(device, arguments);
  if (!why.empty()) return ordinary(why);

  // The current stream comes after what has filled the slots, and who writes them next after it, as in any call.
  const ModuleSlots::ReadLease lease(slots, device);
  const std::vector<Tensor> memory = slots_on(slots, device);
  const ThreadContext& context = thread_context();
  std::vector<std::int64_t> form = arguments.form;
  form.push_back(static_cast<std::int64_t>(context.default_dtype));
  form.push_back(context.autocast ? static_cast<std::int64_t>(context.autocast_dtype) : -1);
  OnDevice* here = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<OnDevice>& made = devices_[ordinal(device)];
    if (!made) made = std::make_unique<OnDevice>();
    here = made.get();
  }
  const std::shared_ptr<Entry> entry = take(*here, memory, std::move(form), why);
  if (!entry) return ordinary(why);
  const Use use(*this, *here, *entry);
  const Stream stream = current_stream(device);
  if (use.records()) {
    if (!here->stream) here->stream = Stream(device);
    // Nothing runs there; but to the order checker the work is done there, in its place.
    here->stream.wait_for(stream);  // on CUDA alone
    capture(*entry, here->stream, memory, arguments, record);
    stream.wait_for(here->stream);  // on CUDA alone
    if (!entry->graph) return ordinary(entry->refused);
  }
  try {
    results = replay(*entry, stream, arguments);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    here->entries.remove(entry);  // the next call begins anew
    throw;
  }
  const std::lock_guard lock(mutex_);
  ++stats_.replayed;
  if (use.records()) ++stats_.captured;
  return entry->result;
}

}  // namespace lockstep::detail
