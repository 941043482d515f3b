// The memory behind tensors: a block of the allocator, a slice of another storage (a slab), or somebody else's memory.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/unique_function.h"
#include "lockstep/tensor/pending_reads.h"
#include "lockstep/tensor/ref.h"

namespace lockstep {

// The streams with work on somebody else's memory, each once.
class StreamUses {
 public:
  explicit StreamUses(const Stream& first) : streams_{&first.body()} {}
  void add(const Stream& stream) {
    const std::lock_guard lock(mutex_);
    for (const detail::StreamBody* known : streams_)
      if (known == &stream.body()) return;
    streams_.push_back(&stream.body());
  }
  std::vector<detail::StreamBody*> streams() {
    const std::lock_guard lock(mutex_);
    return streams_;
  }

 private:
  std::mutex mutex_;
  std::vector<detail::StreamBody*> streams_;
};

class LOCKSTEP_API Storage final : public RefCounted {
 public:
  // Fresh memory, not initialised, for work on the current stream of `device`.
  static Ref<Storage> allocate(Device device, std::size_t bytes);
  // `bytes` bytes of `parent` from `offset_bytes`, with a version of its own.
  static Ref<Storage> slice(Ref<Storage> parent, std::size_t offset_bytes, std::size_t bytes);
  // Memory that somebody else owns; `release` runs when the last tensor is gone. It sees to it that what is on the
  // streams in `uses` comes first.
  static Ref<Storage> external(Device device, void* data, std::size_t bytes, UniqueFunction release,
                               std::shared_ptr<StreamUses> uses = nullptr);

  // Without memory: tensors over it have elements only while it is lent some (sharded parameters). Not to be sliced.
  static Ref<Storage> vacant(Device device, std::size_t bytes);
  // Its memory is that of `parent` from `offset_bytes` on from now on; of a null one it has none again. The version
  // stays: who lends knows whether the elements are others. Who has enqueued work on it has recorded the use.
  void lend(Ref<Storage> parent, std::size_t offset_bytes = 0);
  bool borrows() const { return borrows_; }  // made by vacant()

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Of the allocator, that it lies in; null for somebody else's memory.
  const MemoryBlock* block() const { return parent_ ? parent_->block() : block_; }

  // Counts writes. Work saved for backward remembers it.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }
  void set_version(std::uint64_t version) { version_.store(version, std::memory_order_release); }
  void bump_version() { version_.fetch_add(1, std::memory_order_acq_rel); }

  // Work on `stream` uses the memory: it is reused only after that work.
  void record_use(const Stream& stream);

  // For memory that is copied elsewhere while its owner goes on; before it is sliced. Then what is to write it asks for
  // the place through Tensor::out, in_out and mutable_data, or calls before_write.
  void expect_reads() { pending_reads_ = std::make_shared<PendingReads>(); }
  PendingReads* pending_reads() const { return pending_reads_.get(); }
  // What the current stream of the device does from now on may write the memory.
  void before_write() const {
    if (pending_reads_) [[unlikely]]
      before_write(current_stream(device_));
  }
  void before_write(const Stream& stream) const {
    if (pending_reads_) LOCKSTEP_EDGE(pending_reads_->await(stream));
  }

  static void destroy(Storage* storage) noexcept;

 private:
  Storage(Device device, void* data, std::size_t bytes) : data_(data), bytes_(bytes), device_(device) {}
  ~Storage() = default;

  void* data_;
  std::size_t bytes_;
  Device device_;
  bool borrows_ = false;
  std::atomic<std::uint64_t> version_{0};
  MemoryBlock* block_ = nullptr;
  Ref<Storage> parent_;
  UniqueFunction release_;
  std::shared_ptr<StreamUses> uses_;
  std::shared_ptr<PendingReads> pending_reads_;
};

}  // namespace lockstep
