#include "lockstep/tensor/io/dlpack.h"

#include <cstddef>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/absent_elements.h"
#include "lockstep/tensor/engine/leaf_node.h"

namespace lockstep {
namespace {

using dlpack::ManagedTensor;
using dlpack::ManagedTensorVersioned;
using dlpack::TensorView;

// The layout of dlpack.h on 64-bit machines.
static_assert(sizeof(TensorView) == 48 && offsetof(TensorView, rank) == 16 && offsetof(TensorView, dtype) == 20 &&
              offsetof(TensorView, shape) == 24 && offsetof(TensorView, byte_offset) == 40);
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensor, deleter) == 56);
static_assert(sizeof(ManagedTensorVersioned) == 80 && offsetof(ManagedTensorVersioned, flags) == 24 &&
              offsetof(ManagedTensorVersioned, tensor) == 32);

dlpack::DataType to_type(DType dtype) {
  const std::uint8_t code = dtype == DType::bf16      ? dlpack::kBfloat
                            : is_floating(dtype)      ? dlpack::kFloat
                            : dtype == DType::u8      ? dlpack::kUInt
                            : dtype == DType::boolean ? dlpack::kBool
                                                      : dlpack::kInt;
  return {code, static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
}

DType from_type(dlpack::DataType type) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const dlpack::DataType known = to_type(dtype);
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return dtype;
  }
  detail::fail<NotSupported>("[from_dlpack] expected a dtype that Lockstep has, got code ", static_cast<int>(type.code),
                             " with ", static_cast<int>(type.bits), " bits and ", type.lanes, " lanes");
}

// ---- out

template <class Managed>
struct Export {
  Managed managed{};
  Tensor tensor;  // outside any graph
  bool marks_changed = false;
  void* consumer = nullptr;  // its native stream
  Shape shape;
  Strides strides;

  static void destroy(Managed* managed) {
    auto* self = static_cast<Export*>(managed->manager_context);
    if (self->marks_changed) self->tensor.mark_changed();
    if (self->consumer) self->keep_for_consumer();
    delete self;
  }
  // The memory is reused after what the consumer has enqueued.
  void keep_for_consumer() const noexcept try {
    Stream after(tensor.device());
    wait_for_native(after, consumer);
    tensor.storage()->record_use(after);  // on CUDA alone
  } catch (const Error&) {                // NOLINT: the device is lost, and its memory with it
  }
};

template <class Managed>
Managed* export_tensor(const Tensor& tensor, const DLPackExportOptions& options) {
  LOCKSTEP_CHECK(tensor.defined(), "[to_dlpack] expected a tensor, got an undefined one");
  detail::check_present(*tensor.identity());
  const Device device = tensor.device();
  const bool on_cuda = device.type() == DeviceType::cuda;
  LOCKSTEP_CHECK(!options.native_stream || on_cuda, "[to_dlpack] expected no native stream for ", tensor, ", got one");
  LOCKSTEP_CHECK(!options.native_stream || !options.stream, "[to_dlpack] expected one stream, got two");
  LOCKSTEP_CHECK(!options.stream || options.stream.device() == device, "[to_dlpack] expected a stream of ", device,
                 ", got one of ", options.stream.device());
  auto out = std::make_unique<Export<Managed>>();
  out->tensor = tensor.detach();
  const LeafNode* leaf = tensor.leaf();
  out->marks_changed = leaf && leaf->owner() && !options.read_only;
  out->shape = tensor.shape();
  out->strides = tensor.strides();
  // Consumers that look for row-major tensors by their strides are told what they expect for sizes of 0 and 1.
  if (tensor.contiguous_layout()) out->strides = contiguous_strides(out->shape);
  out->managed.manager_context = out.get();
  out->managed.deleter = &Export<Managed>::destroy;
  // Like most libraries, with the offset in the pointer: not all consumers look at byte_offset.
  out->managed.tensor = {
      .data = const_cast<void*>(tensor.data()),  // NOLINT: the consumer may write
      .device = on_cuda ? dlpack::DeviceId{dlpack::kCuda, native_ordinal(device)} : dlpack::DeviceId{dlpack::kCpu, 0},
      .rank = tensor.rank(),
      .dtype = to_type(tensor.dtype()),
      .shape = out->shape.begin(),
      .strides = out->strides.begin(),
      .byte_offset = 0};
  if (!options.read_only) LOCKSTEP_EDGE(tensor.storage()->before_write());
  const Stream stream = current_stream(device);
  if (options.stream) {
    LOCKSTEP_EDGE(options.stream.wait_for(stream));
    LOCKSTEP_EDGE(tensor.storage()->record_use(options.stream));
  } else if (options.native_stream) {
    native_waits_for(options.native_stream, stream);
    out->consumer = options.native_stream;
  } else if (!stream.synchronous()) {
    Event ready;
    LOCKSTEP_EDGE(ready.record(stream));
    LOCKSTEP_EDGE(wait(ready, Deadline::after(options.timeout)));
  }
  return &out.release()->managed;
}

// ---- in

// The memory that the elements span, from the first on.
std::size_t span_bytes(const Shape& shape, const Strides& strides, std::size_t element_bytes) {
  std::uint64_t last = 0, end = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 0) return 0;
    std::uint64_t reach = 0;
    LOCKSTEP_CHECK(!__builtin_mul_overflow(static_cast<std::uint64_t>(shape[i] - 1),
                                           static_cast<std::uint64_t>(strides[i]), &reach) &&
                       !__builtin_add_overflow(last, reach, &last),
                   "[from_dlpack] expected strides within 64 bits, got ", strides, " for ", shape);
  }
  LOCKSTEP_CHECK(!__builtin_mul_overflow(last + 1, std::uint64_t{element_bytes}, &end) && end >> 63 == 0,
                 "[from_dlpack] expected strides within 64 bits, got ", strides, " for ", shape);
  return end;
}

Device device_of(const dlpack::DeviceId& id) {
  if (id.type == dlpack::kCpu || id.type == dlpack::kCudaHost) return Device::cpu();
  if (id.type != dlpack::kCuda)
    throw NotSupported(
        cat("[from_dlpack] expected a tensor in host memory (device type 1 or 3) or on a GPU (2), got "
            "device type ",
            id.type));
  const std::optional<Device> device = device_at_ordinal(id.id);
  if (!device) throw NotSupported(cat("[from_dlpack] expected a GPU that is a device here, got number ", id.id));
  return *device;
}

// Whoever owns the memory may do with it what it likes after this.
void finish(StreamUses& uses, void* owner) noexcept try {
  for (detail::StreamBody* stream : uses.streams()) {
    if (owner) {
      native_waits_for(owner, *stream);
      continue;
    }
    Event done;
    done.record(*stream);  // on CUDA alone
    // Not by a wait, which would be told what the work threw: that is for the next one.
    const Deadline deadline = Deadline::after(kDefaultTimeout);
    while (done.progress() == Event::Progress::pending && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
} catch (const Error&) {  // NOLINT: the device is lost, and its memory with it
}

// A tensor over the elements, which `release` gives back.
Tensor import_tensor(const TensorView& view, const DLPackImportOptions& options, UniqueFunction release) {
  const Device device = device_of(view.device);
  const DType dtype = from_type(view.dtype);
  LOCKSTEP_CHECK(view.rank >= 0 && (view.rank == 0 || view.shape), "[from_dlpack] expected a shape, got ", view.rank,
                 " dimensions", view.shape ? "" : " without sizes");
  if (view.rank > kMaxRank)
    throw NotSupported(cat("[from_dlpack] expected at most ", kMaxRank, " dimensions, got ", view.rank));
  const Shape shape(std::span<const std::int64_t>(view.shape, static_cast<std::size_t>(view.rank)));
  element_count(shape);  // throws for sizes that are negative or too large
  const Strides strides =
      view.strides && view.rank > 0
          ? Strides(std::span<const std::int64_t>(view.strides, static_cast<std::size_t>(view.rank)))
          : contiguous_strides(shape);
  for (int i = 0; i < strides.rank(); ++i)
    if (strides[i] < 0 && shape[i] > 1)
      throw NotSupported(cat("[from_dlpack] expected strides that are not negative, got ", strides));
  Strides used = strides;
  for (int i = 0; i < used.rank(); ++i)
    if (shape[i] <= 1) used[i] = contiguous_strides(shape)[i];  // not looked at: could be anything
  const std::size_t bytes = span_bytes(shape, used, size_of(dtype));
  LOCKSTEP_CHECK(view.data || bytes == 0, "[from_dlpack] expected elements, got a null pointer");
  auto* data = static_cast<std::byte*>(view.data) + (view.data ? view.byte_offset : 0);
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0)
    throw NotSupported(cat("[from_dlpack] expected elements that are aligned to ", size_of(dtype), " bytes"));
  if (device.is_cpu())
    return Tensor::over(Storage::external(device, data, bytes, std::move(release)), dtype, shape, used);
  const Stream stream = current_stream(device);
  if (options.native_stream) wait_for_native(stream, options.native_stream);
  auto uses = std::make_shared<StreamUses>(stream);
  UniqueFunction finish_and_release = [uses, owner = options.native_stream, then = std::move(release)]() mutable {
    finish(*uses, owner);
    if (then) then();
  };
  return Tensor::over(Storage::external(device, data, bytes, std::move(finish_and_release), uses), dtype, shape, used);
}

// Gives the capsule back when the last tensor is gone, but not before import_tensor has returned: what throws there
// leaves it to the caller.
template <class Managed>
class Owner {
 public:
  explicit Owner(Managed* managed) : managed_(managed) {}
  Owner(Owner&& other) noexcept : managed_(std::exchange(other.managed_, nullptr)) {}
  void operator()() const {
    if (managed_->deleter) managed_->deleter(managed_);
  }

 private:
  Managed* managed_;
};

template <class Managed>
void check_pointer(const Managed* managed) {
  LOCKSTEP_CHECK(managed, "[from_dlpack] expected a capsule, got a null pointer");
}

}  // namespace

ManagedTensorVersioned* to_dlpack(const Tensor& tensor, const DLPackExportOptions& options) {
  auto* managed = export_tensor<ManagedTensorVersioned>(tensor, options);
  managed->version = dlpack::kVersion;
  managed->flags = options.read_only ? dlpack::kReadOnly : 0;
  return managed;
}

ManagedTensor* to_dlpack_unversioned(const Tensor& tensor, const DLPackExportOptions& options) {
  if (options.read_only)
    throw NotSupported("[to_dlpack_unversioned] expected a tensor that may be written to: this struct has no flags");
  return export_tensor<ManagedTensor>(tensor, options);
}

Tensor from_dlpack(ManagedTensorVersioned* managed, const DLPackImportOptions& options) {
  check_pointer(managed);
  if (managed->version.major != dlpack::kVersion.major)
    throw NotSupported(cat("[from_dlpack] expected version ", dlpack::kVersion.major, " of DLPack, got ",
                           managed->version.major, ".", managed->version.minor));
  if ((managed->flags & dlpack::kReadOnly) == 0 || options.alias_read_only)
    return import_tensor(managed->tensor, options, Owner(managed));
  Tensor copy = import_tensor(managed->tensor, options, {}).clone();
  Owner{managed}();
  return copy;
}

Tensor from_dlpack(ManagedTensor* managed, const DLPackImportOptions& options) {
  check_pointer(managed);
  return import_tensor(managed->tensor, options, Owner(managed));
}

}  // namespace lockstep
