// The kernels of a CUDA device against the host's: the same arguments, the same memory with its guard bytes, element by
// element. Without a CUDA device (or another table in the place of cpu's) there is nothing to compare.
#pragma once

#include <memory>

#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"
#include "support/views.h"

namespace support {

// The device to compare with the host, or null.
inline const Device* parity_device() {
  static const std::unique_ptr<Device> device = [] {
    for (const Device d : all_devices())
      if (d.type() == DeviceType::cuda) return std::make_unique<Device>(d);
    if (&kernels::table(DeviceType::cpu) != &kernels::table(DeviceType::host))
      return std::make_unique<Device>(Device::cpu());
    return std::unique_ptr<Device>();
  }();
  return device.get();
}
// For a table that must give the host's very bits, whatever tolerance a case has: tests/instruction_sets/.
inline bool parity_is_exact = false;

#define NEEDS_CUDA                                            \
  if (!parity_device()) {                                     \
    WARN("no CUDA device: nothing to compare with the host"); \
    return;                                                   \
  }

// Host memory and its copy on the device.
class Mirror {
 public:
  Mirror(TestTensor& tensor, const Stream& stream) : tensor_(tensor), block_(allocate(stream, tensor.storage_bytes())) {
    copy(block_->data, stream.device(), tensor.storage(), Device::cpu(), stream);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror() { release(block_); }

  bool holds(const void* data) const { return offset_of(data) < tensor_.storage_bytes(); }
  void* translate(void* data) const { return static_cast<std::byte*>(block_->data) + offset_of(data); }
  TestTensor download(const Stream& stream) const {
    TestTensor result = tensor_;
    copy(result.storage(), Device::cpu(), block_->data, stream.device(), stream);
    return result;
  }

 private:
  std::size_t offset_of(const void* data) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - tensor_.storage());
  }
  void copy(void* to, Device to_device, const void* from, Device from_device, const Stream& stream) const {
    const Stream cpu = current_stream(Device::cpu());
    copy_bytes({to, to_device, from, from_device, tensor_.storage_bytes()}, from_device.is_cpu() ? cpu : stream,
               to_device.is_cpu() ? cpu : stream);
    if (!stream.synchronous()) synchronize(stream);
  }

  TestTensor& tensor_;
  MemoryBlock* block_;
};

// Elements that the host and the device read in one place: what a graph's kernels read anew at each replay.
template <class T>
class OnBothSides {
 public:
  explicit OnBothSides(std::initializer_list<T> values)
      : elements_(static_cast<T*>(backend(*parity_device()).allocate_pinned(values.size() * sizeof(T)))) {
    std::copy(values.begin(), values.end(), elements_);
  }
  OnBothSides(const OnBothSides&) = delete;
  OnBothSides& operator=(const OnBothSides&) = delete;
  ~OnBothSides() { backend(*parity_device()).free_pinned(elements_); }
  const T* data() const { return elements_; }

 private:
  T* elements_;
};

// Runs the kernel on both; empty when all tensors agree afterwards. `tolerance` counts epsilons, relative to the larger
// of the number and `scale`.
template <class Args>
std::string compare_with_host(const Args& args, std::initializer_list<TestTensor*> tensors, double tolerance = 0,
                              double scale = 1) {
  const Device device = *parity_device();
  const Stream stream = current_stream(device);
  std::vector<std::unique_ptr<Mirror>> mirrors;
  for (TestTensor* t : tensors) mirrors.push_back(std::make_unique<Mirror>(*t, stream));
  Args there = args;
  there.views([&](const auto& use) {
    View& view = const_cast<View&>(use.view);
    if (!view.present) return;
    view.device = device;
    for (const auto& m : mirrors)
      if (m->holds(view.data)) {
        view.data = m->translate(view.data);
        return;
      }
    throw std::logic_error("a view of a tensor that is not in the list");
  });
  kernels::launch(stream, there);
  if (!stream.synchronous()) synchronize(stream);
  kernels::table(DeviceType::host).entry<Args>()(current_stream(Device::cpu()), args);
  std::size_t which = 0;
  for (TestTensor* want : tensors) {
    const TestTensor got = mirrors[which]->download(stream);
    if (parity_is_exact && got.bytes() != want->bytes())
      return cat(Args::kName, ": operand ", which, ", ", want->dtype(), " ", want->shape(), ": other bits");
    const double eps = epsilon(want->dtype());
    for (std::int64_t i = 0; i < want->count(); ++i)
      if (!close(got[i], (*want)[i], tolerance * eps, tolerance * eps * scale))
        return cat(Args::kName, ": operand ", which, ", ", want->dtype(), " ", want->shape(), " at ", i, ": host ",
                   (*want)[i], ", device ", got[i]);
    if (!got.guards_intact()) return cat(Args::kName, ": operand ", which, ": a byte outside the elements was written");
    ++which;
  }
  return {};
}

// Runs the kernel on the device: one of its results.
template <class Args>
TestTensor on_device(Args args, std::initializer_list<TestTensor*> tensors, const TestTensor* result) {
  const Stream stream = current_stream(*parity_device());
  std::vector<std::unique_ptr<Mirror>> mirrors;
  const Mirror* chosen = nullptr;
  for (TestTensor* t : tensors) {
    mirrors.push_back(std::make_unique<Mirror>(*t, stream));
    if (t == result) chosen = mirrors.back().get();
  }
  args.views([&](const auto& use) {
    View& view = const_cast<View&>(use.view);
    if (!view.present) return;
    view.device = *parity_device();
    for (const auto& mirror : mirrors)
      if (mirror->holds(view.data)) {
        view.data = mirror->translate(view.data);
        return;
      }
  });
  kernels::launch(stream, args);
  if (!stream.synchronous()) synchronize(stream);
  return chosen->download(stream);
}

inline void check_parity(const std::string& error, const std::string& what) {
  if (!error.empty()) FAIL_CHECK(what << ": " << error);
}

}  // namespace support
