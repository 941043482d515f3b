#include "lockstep/parallel/scatter_tensor.h"

#include <algorithm>
#include <utility>

#include "lockstep/parallel/gather_tensor.h"
#include "lockstep/runtime/copy.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/edge.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/factory.h"
#include "lockstep/tensor/ops_support.h"

namespace lockstep::detail {
namespace {

class ScatterNode final : public NodeOf<1> {
 public:
  const char* name() const override { return "scatter"; }

  void backward(std::span<Tensor> output_gradients, std::span<Tensor> input_gradients) override {
    if (!needs(0)) return;
    std::vector<Tensor> gradients(output_gradients.begin(), output_gradients.end());
    std::vector<const Tensor*> pieces;
    pieces.reserve(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) {
        // A piece that nobody used. Its zeros are made where they are needed.
        Shape shape = shape_;
        shape[dim_] = sizes_[i];
        gradients[i] = zeros(shape, {.dtype = dtype_, .device = device_});
      }
      pieces.push_back(&gradients[i]);
    }
    input_gradients[0] = gather_tensor(pieces, device_, dim_);
  }

  void remember(const Tensor& source, std::span<const std::int64_t> sizes, int dim) {
    shape_ = source.shape();
    dtype_ = source.dtype();
    device_ = source.device();
    sizes_.assign(sizes.begin(), sizes.end());
    dim_ = dim;
  }

 private:
  Shape shape_;
  DType dtype_ = DType::f32;
  Device device_;
  std::vector<std::int64_t> sizes_;
  int dim_ = 0;
};

[[gnu::tls_model("initial-exec")]] thread_local Departures* current_departures = nullptr;

// piece.to(device), but for the edge back to where the piece is.
Tensor send(const Tensor& piece, Device device, Departures& departures) {
  const Tensor whole = piece.contiguous();
  const Tensor copy = fresh(whole.shape(), whole.dtype(), device);
  Stream &source_stream = current_stream(whole.device()), &destination_stream = current_stream(device);
  LOCKSTEP_EDGE(whole.storage()->record_use(source_stream));
  Event copied = start_copy({.destination = const_cast<void*>(copy.data()),
                             .destination_device = device,
                             .source = whole.data(),
                             .source_device = whole.device(),
                             .bytes = whole.bytes()},
                            source_stream, destination_stream);
  if (copied.recorded()) departures.add(whole.storage(), source_stream, std::move(copied));
  return copy;
}

}  // namespace

void Departures::wait_for_all() {
  while (!copies_.empty()) {
    const Copy& copy = copies_.back();
    if (copy.stream->device().is_cpu())
      LOCKSTEP_EDGE(wait(copy.copied, Deadline::after(timeout_)));
    else
      LOCKSTEP_EDGE(copy.stream->wait(copy.copied));
    copies_.pop_back();
  }
}

void Departures::abandon() noexcept {
  while (!copies_.empty()) {
    try {
      settle();
    } catch (const TimeoutError&) {
      (void)copies_.back().storage.leak();
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
    LOCKSTEP_EDGE(node->stream = &current_stream(source.device()));
  }
  return pieces;
}

ScatterPlan::ScatterPlan(std::span<const Device> devices, std::int64_t dim, const ScatterPolicy& policy)
    : devices_(devices), dim_(dim), policy_(policy), piece_devices_(devices.begin(), devices.end()) {
  LOCKSTEP_CHECK(!devices.empty(), "[scatter] expected at least one device, got none");
}

void ScatterPlan::add(const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.rank() > 0, "[scatter] expected tensors with at least one dimension, got ", tensor.describe(),
                 ": pass a number to give every replica the same value");
  const int dim = normalize_dim("scatter", dim_, tensor.rank());
  const std::int64_t count = tensor.shape()[dim];
  std::vector<std::int64_t> sizes = policy_.shares(count, static_cast<int>(devices_.size()));
  std::vector<Device> wanted;
  wanted.reserve(devices_.size());
  if (count == 0) {
    sizes.assign(1, 0);
    wanted.push_back(devices_[0]);
  } else {
    std::size_t used = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) continue;
      sizes[used++] = sizes[i];
      wanted.push_back(devices_[i]);
    }
    sizes.resize(used);
  }
  if (!decided_) {
    decided_ = true;
    first_tensor_ = &tensor;
    piece_devices_ = std::move(wanted);
  } else if (wanted != piece_devices_) {
    fail_disagreement(wanted, tensor.describe());
  }
  divisions_.push_back({&tensor, dim, std::move(sizes)});
}

void ScatterPlan::add_divided(std::size_t count) {
  LOCKSTEP_CHECK(count >= 1 && count <= devices_.size(), "[scatter] expected a container divided into 1 to ",
                 devices_.size(), " parts, one per device, got ", count, " (see samples_per_device of collate)");
  std::vector<Device> wanted(devices_.begin(), devices_.begin() + static_cast<std::ptrdiff_t>(count));
  if (!decided_) {
    decided_ = true;
    piece_devices_ = std::move(wanted);
  } else if (wanted != piece_devices_) {
    fail_disagreement(wanted, cat("a container divided into ", count, " parts"));
  }
}

void ScatterPlan::fail_disagreement(const std::vector<Device>& wanted, const std::string& what) const {
  const auto pieces = [](const std::vector<Device>& devices) {
    return cat(devices.size(), devices.size() == 1 ? " piece on " : " pieces on ", devices);
  };
  fail<InvalidArgument>("[scatter] expected everything in one call to give the same pieces, got ",
                        pieces(piece_devices_), " from ",
                        first_tensor_ ? first_tensor_->describe() : "a container divided already", " and ",
                        pieces(wanted), " from ", what);
}

void ScatterPlan::split() {
  pieces_.reserve(divisions_.size());
  for (const Division& division : divisions_) {
    pieces_.push_back(scatter_tensor(*division.tensor, piece_devices_, division.sizes, division.dim));
  }
}

}  // namespace lockstep::detail
