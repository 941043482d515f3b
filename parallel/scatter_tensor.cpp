#include "lockstep/parallel/scatter_tensor.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/parallel/gather_tensor.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream_state.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

class ScatterNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "scatter"; }

  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (!needs(0)) return;
    std::vector<Tensor> gradients(grad_outputs.begin(), grad_outputs.end());
    std::vector<const Tensor*> pieces;
    pieces.reserve(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) {
        // A piece that nobody used. Its zeros are made where they are needed.
        Shape shape = shape_;
        shape[dim_] = sizes_[i];
        gradients[i] = fresh(shape, dtype_, device_, format_);
        fill(gradients[i], 0);
      }
      pieces.push_back(&gradients[i]);
    }
    grad_inputs[0] = gather_tensor(pieces, device_, dim_);
  }

  void remember(const Tensor& source, std::span<const std::int64_t> sizes, int dim) {
    shape_ = source.shape();
    format_ = source.memory_format();
    dtype_ = source.dtype();
    device_ = source.device();
    sizes_.assign(sizes.begin(), sizes.end());
    dim_ = dim;
  }

 private:
  Shape shape_;
  MemoryFormat format_ = MemoryFormat::contiguous;
  DType dtype_ = DType::f32;
  Device device_;
  std::vector<std::int64_t> sizes_;
  int dim_ = 0;
};

thread_local Departures* current_departures = nullptr;

// piece.to(device), but for the edge back to where the piece is.
Tensor send(const Tensor& piece, Device device, Departures& departures) {
  const MemoryFormat format = piece.memory_format();
  const Tensor whole = piece.contiguous(format);
  Tensor copy = fresh(whole.shape(), whole.dtype(), device, format);
  const Stream source_stream = current_stream(whole.device()), destination_stream = current_stream(device);
  LOCKSTEP_EDGE(whole.storage()->record_use(source_stream));
  Event copied = start_copy({.destination = const_cast<void*>(copy.data()),
                             .destination_device = device,
                             .source = whole.data(),
                             .source_device = whole.device(),
                             .bytes = whole.bytes()},
                            source_stream, destination_stream);
  if (copied.recorded()) {
    try {
      departures.add(whole.storage(), source_stream, std::move(copied));
    } catch (const std::bad_alloc&) {  // nobody keeps the source for the copy, which that stream waits for
      settle(destination_stream.backend(), device, destination_stream.handle());
      throw;
    }
  }
  return copy;
}

}  // namespace

void Departures::wait_for_all() {
  while (!copies_.empty()) {
    const Copy& copy = copies_.back();
    if (copy.stream->device.is_cpu())
      LOCKSTEP_EDGE(wait(copy.copied, Deadline::after(timeout_)));
    else
      LOCKSTEP_EDGE(Stream(*copy.stream).wait(copy.copied));
    copies_.pop_back();
  }
}

namespace {
bool over(const Event& copied, Deadline deadline) noexcept try {
  while (!copied.query()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
} catch (...) {
  return true;  // it has failed, so it is over
}
}  // namespace

// Copies that were under way when their time was up, with the memory they read.
struct Departures::Late {
  std::mutex mutex;
  std::vector<Copy> copies;
  std::atomic<bool> any = false;

  static Late& all() {
    static Late& late = *new Late;  // such a copy may outlive the statics
    return late;
  }

  void add(Copy& copy) noexcept try {
    const std::scoped_lock lock(mutex);
    copies.push_back(std::move(copy));
    any = true;
  } catch (const std::bad_alloc&) {
    (void)copy.storage.leak();
  }

  // The memory of those that are over. Each is freed outside the lock: a deleter is somebody else's code.
  void free() noexcept {
    for (;;) {
      Ref<Storage> done;
      const std::scoped_lock lock(mutex);
      const auto copy = std::ranges::find_if(copies, [](const Copy& c) { return over(c.copied, Deadline::after({})); });
      if (copy == copies.end()) return;
      done = std::move(copy->storage);
      copies.erase(copy);
      any = !copies.empty();
    }
  }
};

void Departures::free_late() noexcept {
  if (Late& late = Late::all(); late.any.load(std::memory_order_relaxed)) late.free();
}

void Departures::abandon() noexcept {
  while (!copies_.empty()) {
    try {
      settle();
    } catch (const TimeoutError&) {
      Late::all().add(copies_.back());
      copies_.pop_back();
    } catch (const std::bad_alloc&) {  // the stream cannot be told to wait: the host does in its place
      if (!over(copies_.back().copied, Deadline::after(timeout_))) Late::all().add(copies_.back());
      copies_.pop_back();
    } catch (...) {
      // The copy is over. Whoever needs the piece is told of the error.
      copies_.pop_back();
    }
  }
}

Departures::Scope::Scope(Departures& departures) : outer_(std::exchange(current_departures, &departures)) {}
Departures::Scope::~Scope() { current_departures = outer_; }

std::uint64_t& moved_bytes() {
  thread_local std::uint64_t bytes = 0;
  return bytes;
}

void check_devices(const char* op, std::span<const Device> devices) {
  LOCKSTEP_CHECK(!devices.empty(), "[", op, "] expected at least one device, got none");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    ordinal(devices[i]);
    for (std::size_t j = 0; j < i; ++j) {
      LOCKSTEP_CHECK(devices[i] != devices[j], "[", op, "] expected different devices, got ", devices[i],
                     " twice (logical devices let several replicas share one GPU)");
    }
  }
}

std::vector<Tensor> scatter_tensor(const Tensor& source, std::span<const Device> devices,
                                   std::span<const std::int64_t> sizes, int dim) {
  if (devices.size() == 1 && devices[0] == source.device()) return {source};

  std::vector<Tensor> pieces;
  pieces.reserve(devices.size());
  Departures own;
  Departures& departures = current_departures ? *current_departures : own;
  {
    NoGrad off;  // the pieces' place in the graph is the node below
    std::int64_t start = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      Tensor piece = source.narrow(dim, start, sizes[i]);
      start += sizes[i];
      if (devices[i] != source.device()) {
        moved_bytes() += piece.bytes();
        piece = send(piece, devices[i], departures);
      }
      // Every piece needs a handle of its own, for its edge.
      if (piece.identity() == source.identity()) {
        piece = Tensor::over(piece.storage(), piece.dtype(), piece.shape(), piece.strides(), piece.storage_offset());
      }
      pieces.push_back(std::move(piece));
    }
  }
  own.settle();
  if (GradMode::enabled() && wants_gradient(source)) {
    const Ref<ScatterNode> node(new ScatterNode);
    node->remember(source, sizes, dim);
    node->edges()[0] = source.edge();
    node->output_count = static_cast<std::uint32_t>(pieces.size());
    for (std::uint32_t i = 0; i < node->output_count; ++i) attach(*node, pieces[i], i);
    // Its backward collects the gradients where the source is.
    LOCKSTEP_EDGE(node->stream = &current_stream(source.device()).body());
  }
  return pieces;
}

namespace {
// "4 + 2"
std::string text_of(const std::vector<std::int64_t>& samples) {
  std::string text;
  for (const std::int64_t each : samples) text += cat(text.empty() ? "" : " + ", each);
  return text;
}
}  // namespace

ScatterPlan::ScatterPlan(std::span<const Device> devices, std::int64_t dim, const ScatterPolicy& policy)
    : devices_(devices), dim_(dim), policy_(policy), piece_devices_(devices.begin(), devices.end()) {
  check_devices("scatter", devices);
}

void ScatterPlan::add(const Tensor& tensor) {
  const bool stays = devices_.size() == 1 && devices_[0].is_cpu();
  LOCKSTEP_CHECK(tensor.rank() > 0 || stays, "[scatter] expected tensors with at least one dimension, got ",
                 tensor.describe(), ": pass a number to give every replica the same value");
  added_.push_back({.tensor = &tensor});
}

void ScatterPlan::add(const PackedSequence& sequences) {
  sequences.check("scatter");
  added_.push_back({.sequences = &sequences});
}

void ScatterPlan::add_divided(std::size_t count, const std::vector<std::int64_t>& samples) {
  LOCKSTEP_CHECK(count >= 1 && count <= devices_.size(), "[scatter] expected a container divided into 1 to ",
                 devices_.size(), " parts, one per device, got ", count, " (see samples_per_device of collate)");
  added_.push_back({.parts = count});
  whole_ |= samples.size() == 1;  // nothing can part company then
  if (samples.size() < 2 || samples == samples_) return;
  LOCKSTEP_CHECK(samples_.empty() || samples_.size() != samples.size(),
                 "[scatter] expected the containers in one call to have the same groups, got ", text_of(samples_),
                 " and ", text_of(samples), " samples");
  if (samples_.empty()) samples_ = samples;  // else decide() names the numbers of pieces
}

std::string ScatterPlan::Added::describe() const {
  if (tensor) return tensor->describe();
  if (sequences) return cat(sequences->sample_count(), " packed sequences");
  return cat("a container divided into ", parts, " parts");
}

// Finds the sizes of its pieces, and where they go.
std::vector<Device> ScatterPlan::divide(Division& division) const {
  std::int64_t count = 0;
  if (const Tensor* tensor = division.value.tensor) {
    if (tensor->rank() == 0) return {devices_[0]};
    division.dim = normalize_dim("scatter", dim_, tensor->rank());
    count = tensor->shape()[division.dim];
  } else {
    count = division.value.sequences->sample_count();
  }
  if (whole_ && policy_.is_chunk()) {
    division.sizes.assign(1, count);
    return {devices_[0]};
  }
  if (!samples_.empty()) {
    const std::int64_t sum = std::accumulate(samples_.begin(), samples_.end(), std::int64_t{0});
    const bool sequences = division.value.sequences != nullptr;
    LOCKSTEP_CHECK(count == sum, "[scatter] expected ", sequences ? "packed sequences" : "tensors",
                   " beside a container with groups of ", text_of(samples_), " samples to ",
                   sequences ? cat("be ", sum) : cat("have ", sum, " elements along dimension ", division.dim),
                   ", got ", division.value.describe());
    division.sizes = samples_;
    if (!policy_.is_chunk()) {
      std::vector<std::int64_t> sizes = policy_.shares(count, static_cast<int>(devices_.size()));
      while (sizes.size() > samples_.size() && sizes.back() == 0) sizes.pop_back();
      LOCKSTEP_CHECK(sizes == samples_, "[scatter] expected a policy that divides as the containers in the call, by ",
                     text_of(samples_), " samples, got one of ", text_of(sizes));
    }
    return {devices_.begin(), devices_.begin() + static_cast<std::ptrdiff_t>(samples_.size())};
  }
  if (count == 0) {
    division.sizes.assign(1, 0);
    return {devices_[0]};
  }
  std::vector<Device> wanted;
  wanted.reserve(devices_.size());
  const std::vector<std::int64_t> shares = policy_.shares(count, static_cast<int>(devices_.size()));
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) continue;
    division.sizes.push_back(shares[i]);
    wanted.push_back(devices_[i]);
  }
  return wanted;
}

void ScatterPlan::decide() {
  const auto pieces = [](const std::vector<Device>& devices) {
    return cat(devices.size(), devices.size() == 1 ? " piece on " : " pieces on ", devices);
  };
  for (const Added& added : added_) {
    std::vector<Device> wanted(devices_.begin(), devices_.begin() + static_cast<std::ptrdiff_t>(added.parts));
    if (added.parts == 0) {
      Division division{added};
      wanted = divide(division);
      divisions_.push_back(std::move(division));
    }
    if (&added == &added_.front())
      piece_devices_ = std::move(wanted);
    else if (wanted != piece_devices_)
      fail<InvalidArgument>("[scatter] expected everything in one call to give the same pieces, got ",
                            pieces(piece_devices_), " from ", added_.front().describe(), " and ", pieces(wanted),
                            " from ", added.describe());
  }
}

void ScatterPlan::split() {
  decide();
  pieces_.reserve(divisions_.size());
  for (const Division& division : divisions_) {
    if (division.value.sequences) {
      const auto [rows, counts] = division.value.sequences->group(division.sizes);
      pieces_.push_back(scatter_tensor(rows, piece_devices_, counts, 0));
      continue;
    }
    const Tensor& tensor = *division.value.tensor;
    if (tensor.rank() > 0) {
      pieces_.push_back(scatter_tensor(tensor, piece_devices_, division.sizes, division.dim));
    } else {
      if (!tensor.device().is_cpu()) moved_bytes() += tensor.bytes();
      pieces_.push_back({tensor.to(piece_devices_[0])});
    }
  }
}

void ScatterPlan::take(std::size_t tensor, std::size_t piece, PackedSequence& sequences) {
  const std::vector<std::int64_t>& sizes = divisions_[tensor].sizes;
  const auto first =
      std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(piece), std::int64_t{0});
  sequences = sequences.part(first, sizes[piece], take(tensor, piece));
}

}  // namespace lockstep::detail
