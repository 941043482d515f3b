#include "lockstep/tensor/data/transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>
#include <map>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/alignment.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/per_device.h"
#include "lockstep/runtime/retained.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kSmallest = std::size_t{1} << 16;
// With so many of a size under way, the next one waits for the oldest instead of growing the pool.
constexpr std::size_t kMostUnderWay = 8;

struct Buffer {
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  Event used;  // the last copy from it
};

bool has_arrived(const Buffer& buffer) {
  try {
    return buffer.used.query();
  } catch (const Error&) {
    return true;  // the copy failed, which whoever waits for its batch is told
  }
}

// Pinned memory that is kept for the next batch, whichever loader makes it: to free it would stop the device. Whoever
// has a buffer has it alone, so that no lock is held while the host waits for it.
struct BufferPool {
  std::mutex mutex;
  std::map<std::size_t, std::list<Buffer>> idle;  // by size; the one that has rested longest in front

  static BufferPool& of(Device device) {
    static constinit PerDevice<BufferPool> pools;
    return pools[device];
  }

  // A list of one, which goes back without needing memory.
  std::list<Buffer> take(Device device, std::size_t wanted) {
    const std::size_t bytes = std::bit_ceil(std::max(wanted, kSmallest));
    std::list<Buffer> taken;
    {
      std::lock_guard lock(mutex);
      std::list<Buffer>& list = idle[bytes];
      if (!list.empty() && (list.size() >= kMostUnderWay || has_arrived(list.front())))
        taken.splice(taken.end(), list, list.begin());
    }
    if (taken.empty()) {
      Buffer& buffer = taken.emplace_back();
      buffer.memory = static_cast<std::byte*>(backend(device).allocate_pinned(bytes));
      if (!buffer.memory) throw OutOfMemory(Device::cpu(), bytes, 0, 0);
      buffer.bytes = bytes;
    }
    return taken;
  }
  void give(std::list<Buffer>& taken) noexcept {
    std::lock_guard lock(mutex);
    std::list<Buffer>& list = idle.find(taken.front().bytes)->second;
    list.splice(list.end(), taken);
  }
};

// A buffer that goes back to the pool at the end of the scope.
class TakenBuffer {
 public:
  TakenBuffer(Device device, std::size_t bytes) : pool_(BufferPool::of(device)), buffer_(pool_.take(device, bytes)) {}
  TakenBuffer(const TakenBuffer&) = delete;
  ~TakenBuffer() { pool_.give(buffer_); }
  Buffer* operator->() { return &buffer_.front(); }

 private:
  BufferPool& pool_;
  std::list<Buffer> buffer_;
};

}  // namespace

Transfer::Transfer(Device device) : device_(device), stream_(device) { forget_hand_overs(this); }

Event Transfer::send(const std::vector<Tensor*>& tensors) {
  struct Part {
    Tensor* tensor;
    std::size_t at;
  };
  std::vector<Part> parts;
  std::size_t bytes = 0;
  for (Tensor* tensor : tensors) {
    if (!tensor->device().is_cpu()) continue;
    *tensor = tensor->detach().contiguous(tensor->memory_format());
    parts.push_back({tensor, bytes});
    bytes += aligned_bytes(tensor->bytes());
  }
  Event sent;
  if (parts.empty()) return sent;
  TakenBuffer buffer(device_, bytes);
  try {
    LOCKSTEP_EDGE(wait(buffer->used, Deadline::after(kDefaultTimeout)));
  } catch (const DeviceError&) {
    // The copy failed, which whoever waits for its batch is told.
  }
  for (const Part& part : parts)
    if (part.tensor->bytes() > 0) std::memcpy(buffer->memory + part.at, part.tensor->data(), part.tensor->bytes());

  std::lock_guard lock(mutex_);
  take_over(this);
  LOCKSTEP_EDGE_SCOPE(StreamScope, scope, stream_);
  for (const Part& part : parts) {
    const Tensor& source = *part.tensor;
    const Tensor there =
        Tensor::over(Storage::allocate(device_, source.bytes()), source.dtype(), source.shape(), source.strides());
    if (source.bytes() > 0)
      stream_.backend().copy(
          {there.storage()->data(), device_, buffer->memory + part.at, Device::cpu(), source.bytes()},
          stream_.handle());
    *part.tensor = there;
  }
  LOCKSTEP_EDGE(buffer->used.record(stream_));
  LOCKSTEP_EDGE(sent.record(stream_));
  hand_over(this);
  return sent;
}

void Transfer::receive(const Event& sent, const std::vector<Tensor*>& tensors) const {
  const Stream stream = current_stream(device_);
  LOCKSTEP_EDGE(stream.wait(sent));
  for (const Tensor* tensor : tensors)
    if (tensor->device() == device_) LOCKSTEP_EDGE(tensor->storage()->record_use(stream));
}

Retained retained_transfers(Device device) {
  BufferPool& pool = BufferPool::of(device);
  std::lock_guard lock(pool.mutex);
  Retained all;
  for (const auto& [bytes, list] : pool.idle) {
    all.pinned += static_cast<int>(list.size());
    for (const Buffer& buffer : list) all.events += buffer.used.recorded();
  }
  return all;
}

}  // namespace lockstep::detail
