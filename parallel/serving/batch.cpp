#include "lockstep/parallel/serving/batch.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/padding.h"

namespace lockstep::detail {
namespace {

bool is_padded(const std::optional<Padding>& padding, std::size_t index, const Tensor& tensor) {
  return padding && padding->dim < tensor.rank() &&
         std::find(padding->tensors.begin(), padding->tensors.end(), index) != padding->tensors.end();
}

// What `size` is padded to; -1: to the largest of the batch.
std::int64_t padded_size(const Padding& padding, std::int64_t size) {
  if (padding.sizes.empty()) return -1;
  const auto fits = std::lower_bound(padding.sizes.begin(), padding.sizes.end(), size);
  return fits == padding.sizes.end() ? size : *fits;
}

// Samples `first` to `first + count`, in memory of their own.
Tensor own_samples(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  if (!tensor.device().is_cpu() || !tensor.contiguous_layout()) return tensor.narrow(0, first, count).clone();
  // What most answers are, without a view in between.
  Shape shape = tensor.shape();
  const std::size_t sample = shape[0] == 0 ? 0 : tensor.bytes() / static_cast<std::size_t>(shape[0]);
  shape[0] = count;
  const std::size_t bytes = sample * static_cast<std::size_t>(count);
  Tensor own =
      Tensor::over(Storage::allocate(tensor.device(), bytes), tensor.dtype(), shape, contiguous_strides(shape));
  if (bytes > 0)
    std::memcpy(own.storage()->data(),
                static_cast<const std::byte*>(tensor.data()) + sample * static_cast<std::size_t>(first), bytes);
  return own;
}

}  // namespace

void BatchKey::add(const Tensor& tensor) {
  if (wrong_.empty() && tensor.rank() == 0)
    wrong_ = cat("[ReplicaPool] expected tensors with samples in dimension 0, got ", tensor);
  else if (wrong_.empty() && samples_ >= 0 && tensor.size(0) != samples_)
    wrong_ =
        cat("[ReplicaPool] expected ", samples_, " samples in dimension 0 of each tensor of a request, got ", tensor);
  else if (tensor.rank() > 0)
    samples_ = tensor.size(0);
  const bool padded = is_padded(padding_, tensors_++, tensor);
  if (wrong_.empty() && padded && !can_pad(tensor.dtype(), padding_->value))
    wrong_ =
        cat("[ReplicaPool] expected padding that ", tensor.dtype(), " has, got ", padding_->value, " for ", tensor);
  add(static_cast<std::int64_t>(tensor.dtype()));
  add(tensor.rank());
  for (int dim = 1; dim < tensor.rank(); ++dim)
    add(padded && dim == padding_->dim ? padded_size(*padding_, tensor.size(dim)) : tensor.size(dim));
  follow(tensor);
}

void BatchKey::follow(const Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  const Stream stream = current_stream(tensor.device());
  if (!stream.synchronous()) LOCKSTEP_EDGE(written_.emplace_back().record(stream));
}

// Seven bits a byte, signs to the end: LEB128 of zigzag numbers, as protocol buffers have them.
void BatchKey::add(std::int64_t number) {
  auto left = (static_cast<std::uint64_t>(number) << 1) ^ static_cast<std::uint64_t>(number >> 63);
  for (; left >= 128; left >>= 7) text_ += static_cast<char>(left | 128);
  text_ += static_cast<char>(left);
}

void BatchKey::finish(ServingRequest& request) {
  if (tensors_ == 0) set_alone();
  if (!alone_ && !wrong_.empty()) throw InvalidArgument(wrong_);
  if (alone_) {
    static std::atomic<std::int64_t> next{0};
    text_ = "a";
    add(next.fetch_add(1, std::memory_order_relaxed));
  }
  request.key = std::move(text_);
  request.alone = alone_;
  request.samples = alone_ || samples_ < 0 ? 1 : samples_;
  request.written = std::move(written_);
}

void BatchTensors::await_writers() const {
  for (const auto& request : batch_)
    for (const Event& event : request->written) LOCKSTEP_EDGE(current_stream(event.device()).wait(event));
}

Tensor BatchTensors::join(std::size_t index, std::span<const Tensor> parts) {
  const std::optional<Padding>& padding = options_.padding;
  const bool padded = !batch_[0]->alone && is_padded(padding, index, parts[0]);
  std::int64_t size = 0;
  bool uneven = false;
  if (padded) {
    std::vector<std::int64_t> own;
    for (const Tensor& part : parts) own.push_back(part.size(padding->dim));
    size = padded_size(*padding, own[0]);
    if (size < 0) size = *std::max_element(own.begin(), own.end());
    uneven = std::any_of(own.begin(), own.end(), [&](std::int64_t one) { return one != size; });
    if (own_sizes_.empty()) own_sizes_ = std::move(own);
  }
  if (parts.size() == 1 && !uneven) return parts[0].to(device_);
  // Joined where the tensors are, so that one copy takes all of them to the device.
  const Device common = parts[0].device();
  const bool together =
      std::all_of(parts.begin(), parts.end(), [&](const Tensor& part) { return part.device() == common; });
  const Device at = together ? common : device_;
  if (!uneven && together) return cat(parts, 0).to(device_);
  if (!uneven) {
    std::vector<Tensor> there;
    there.reserve(parts.size());
    for (const Tensor& part : parts) there.push_back(part.to(device_));
    return cat(there, 0);
  }
  Shape shape = parts[0].shape();
  shape[0] = 0;
  for (const Tensor& part : parts) shape[0] += part.size(0);
  shape[static_cast<int>(padding->dim)] = size;
  const Tensor whole = full(shape, padding->value, {.dtype = parts[0].dtype(), .device = at});
  std::int64_t first = 0;
  for (const Tensor& part : parts) {
    whole.narrow(0, first, part.size(0)).narrow(padding->dim, 0, part.size(padding->dim)).copy_(part.to(at));
    first += part.size(0);
  }
  return whole.to(device_);
}

Tensor BatchTensors::bring(const Tensor& output) const {
  if (batch_[0]->alone) return output.to(options_.output_device);
  std::int64_t samples = 0;
  for (const auto& request : batch_) samples += request->samples;
  LOCKSTEP_CHECK(output.rank() > 0 && output.size(0) == samples, "[ReplicaPool] expected answers with ", samples,
                 " samples in dimension 0, as the inputs have, got ", output);
  return output.to(options_.output_device);
}

Tensor BatchTensors::part(std::size_t index, const Tensor& output, std::size_t i) const {
  if (batch_[0]->alone) return output.clone();
  std::int64_t first = 0;
  for (std::size_t before = 0; before < i; ++before) first += batch_[before]->samples;
  // Of their own: no answer sees another one, a parameter, or an input.
  const std::optional<Padding>& padding = options_.padding;
  if (!padding || std::find(padding->cropped.begin(), padding->cropped.end(), index) == padding->cropped.end())
    return own_samples(output, first, batch_[i]->samples);
  LOCKSTEP_CHECK(padding->dim < output.rank() && i < own_sizes_.size() && own_sizes_[i] <= output.size(padding->dim),
                 "[ReplicaPool] expected an answer with the size of the inputs in dimension ", padding->dim,
                 ", to be cropped, got ", output);
  return output.narrow(0, first, batch_[i]->samples).narrow(padding->dim, 0, own_sizes_[i]).clone();
}

}  // namespace lockstep::detail
