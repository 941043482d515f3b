#include "lockstep/parallel/gather_tensor.h"

#include <vector>

#include "lockstep/parallel/scatter_tensor.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {
namespace {

class GatherNode final : public NodeOfMany {
 public:
  const char* name() const override { return "gather"; }

  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    std::vector<Tensor> pieces = scatter_tensor(grad_outputs[0], devices_, sizes_, dim_);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (needs(static_cast<int>(i))) grad_inputs[i] = scalars_ ? pieces[i].reshape({}) : std::move(pieces[i]);
    }
  }

  void remember(std::span<const Tensor* const> pieces, int dim, bool scalars) {
    devices_.reserve(pieces.size());
    sizes_.reserve(pieces.size());
    for (const Tensor* piece : pieces) {
      devices_.push_back(piece->device());
      sizes_.push_back(scalars ? 1 : piece->shape()[dim]);
    }
    dim_ = dim;
    scalars_ = scalars;
  }

 private:
  std::vector<Device> devices_;
  std::vector<std::int64_t> sizes_;
  int dim_ = 0;
  bool scalars_ = false;
};

// What the result looks like. Checks that the pieces fit together.
Shape result_shape(std::span<const Tensor* const> pieces, int dim, bool scalars) {
  const Tensor& first = *pieces[0];
  Shape shape = scalars ? Shape{0} : first.shape();
  std::int64_t length = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Tensor& piece = *pieces[i];
    bool fits = piece.rank() == first.rank() && piece.dtype() == first.dtype();
    for (int d = 0; fits && d < first.rank(); ++d) fits = d == dim || piece.shape()[d] == first.shape()[d];
    LOCKSTEP_CHECK(fits, "[gather] expected outputs of one dtype whose shapes differ in dimension ", dim,
                   " alone, got ", first.describe(), " from replica 0 and ", piece.describe(), " from replica ", i);
    length += scalars ? 1 : piece.shape()[dim];
  }
  shape[dim] = length;
  return shape;
}

// True when a range of dimension `dim` of a tensor without gaps has none itself.
bool ranges_contiguous(const Shape& shape, int dim, MemoryFormat format) {
  if (format == MemoryFormat::channels_last) return dim == 0;
  for (int d = 0; d < dim; ++d) {
    if (shape[d] != 1) return false;
  }
  return true;
}

Tensor concatenate(std::span<const Tensor* const> pieces, const Shape& shape, int dim, bool scalars, Device device) {
  NoGrad off;
  MemoryFormat format = pieces[0]->memory_format();
  for (const Tensor* const piece : pieces)
    if (piece->count() > 0 && piece->memory_format() != format) format = MemoryFormat::contiguous;
  Tensor result = fresh(shape, pieces[0]->dtype(), device, format);
  const bool direct = ranges_contiguous(shape, dim, format);
  const Stream destination_stream = current_stream(device);
  auto* place = static_cast<std::byte*>(result.storage()->data());
  std::int64_t start = 0;
  for (const Tensor* given : pieces) {
    const std::int64_t length = scalars ? 1 : given->shape()[dim];
    if (given->count() == 0) continue;
    if (given->device() != device) moved_bytes() += given->bytes();
    if (direct) {
      const Tensor piece = given->contiguous(format);  // the copy below is of bytes
      const Stream source_stream = current_stream(piece.device());
      copy_bytes({place, device, piece.data(), piece.device(), piece.bytes()}, source_stream, destination_stream);
      LOCKSTEP_EDGE(piece.storage()->record_use(source_stream));
      place += piece.bytes();
    } else {
      result.narrow(dim, start, length).copy_(given->to(device));
    }
    start += length;
  }
  return result;
}

void warn_about_scalars() {
  if (scalar_warning_given().exchange(true, std::memory_order_relaxed)) return;
  log(LogLevel::warning,
      "[gather] the replicas returned scalars; they are gathered into a vector with one element per replica");
}

}  // namespace

std::atomic<bool>& scalar_warning_given() {
  static std::atomic<bool> given{false};
  return given;
}

Tensor gather_tensor(std::span<const Tensor* const> pieces, Device device, std::int64_t dim) {
  LOCKSTEP_CHECK(!pieces.empty(), "[gather] expected at least one output, got none");
  std::size_t defined = 0;
  for (const Tensor* piece : pieces) defined += piece->defined();
  if (defined == 0) return {};
  for (std::size_t i = 0; defined != pieces.size() && i < pieces.size(); ++i) {
    LOCKSTEP_CHECK(pieces[i]->defined() == pieces[0]->defined(),
                   "[gather] expected a tensor from every replica or from none, got ", pieces[0]->describe(),
                   " from replica 0 and ", pieces[i]->describe(), " from replica ", i);
  }

  const Tensor& first = *pieces[0];
  const bool scalars = first.rank() == 0;
  if (scalars) {
    LOCKSTEP_CHECK(dim == 0, "[gather] expected dim 0 for outputs without dimensions, got ", dim);
  }
  const int at = scalars ? 0 : normalize_dim("gather", dim, first.rank());
  const Shape shape = result_shape(pieces, at, scalars);
  if (pieces.size() == 1 && !scalars && first.device() == device) return first;

  Tensor result = concatenate(pieces, shape, at, scalars, device);
  bool wanted = false;
  for (const Tensor* piece : pieces) wanted |= wants_gradient(*piece);
  if (wanted && GradMode::enabled()) {
    const Ref<GatherNode> node(new GatherNode);
    node->set_inputs(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) node->edges()[i] = pieces[i]->edge();
    node->remember(pieces, at, scalars);
    attach(*node, result, 0);
  }
  if (scalars) warn_about_scalars();
  return result;
}

}  // namespace lockstep::detail
