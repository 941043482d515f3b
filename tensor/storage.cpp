#include "lockstep/tensor/storage.h"

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

Ref<Storage> Storage::allocate(Device device, std::size_t bytes) {
  struct GiveBack {
    void operator()(MemoryBlock* block) const noexcept { lockstep::release(block); }
  };
  std::unique_ptr<MemoryBlock, GiveBack> block(lockstep::allocate(current_stream(device), bytes));
  Ref<Storage> storage(new Storage(device, block->data, bytes));
  storage->block_ = block.release();
  return storage;
}

Ref<Storage> Storage::slice(Ref<Storage> parent, std::size_t offset_bytes, std::size_t bytes) {
  LOCKSTEP_CHECK(offset_bytes <= parent->bytes_ && bytes <= parent->bytes_ - offset_bytes,
                 "[storage] expected a slice of ", parent->bytes_, " bytes, got ", bytes, " bytes at ", offset_bytes);
  Ref<Storage> storage(new Storage(parent->device_, static_cast<std::byte*>(parent->data_) + offset_bytes, bytes));
  storage->pending_reads_ = parent->pending_reads_;
  storage->parent_ = std::move(parent);
  return storage;
}

Ref<Storage> Storage::vacant(Device device, std::size_t bytes) {
  Ref<Storage> storage(new Storage(device, nullptr, bytes));
  storage->borrows_ = true;
  return storage;
}

void Storage::lend(Ref<Storage> parent, std::size_t offset_bytes) {
  LOCKSTEP_CHECK(!parent || (offset_bytes <= parent->bytes_ && bytes_ <= parent->bytes_ - offset_bytes),
                 "[storage] expected to lend ", bytes_, " bytes, got ", parent ? parent->bytes_ : 0, " bytes from ",
                 offset_bytes);
  data_ = parent ? static_cast<std::byte*>(parent->data_) + offset_bytes : nullptr;
  parent_ = std::move(parent);
}

Ref<Storage> Storage::external(Device device, void* data, std::size_t bytes, UniqueFunction release,
                               std::shared_ptr<StreamUses> uses) {
  Ref<Storage> storage(new Storage(device, data, bytes));
  storage->release_ = std::move(release);
  storage->uses_ = std::move(uses);
  return storage;
}

void Storage::record_use(const Stream& stream) {
  Storage* owner = this;
  while (owner->parent_) owner = owner->parent_.get();
  if (owner->block_) LOCKSTEP_EDGE(lockstep::record_use(owner->block_, stream));
  if (owner->uses_) owner->uses_->add(stream);
}

void Storage::destroy(Storage* storage) noexcept {
  if (storage->block_) lockstep::release(storage->block_);
  if (storage->release_) storage->release_();
  delete storage;
}

}  // namespace lockstep
