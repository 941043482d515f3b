#include "lockstep/tensor/captured_storages.h"

#include <vector>

namespace lockstep::detail {
namespace {

class CapturedStorages final : public Replayed {
 public:
  void replayed(const Stream&) noexcept override {
    for (const Use& use : uses_)
      if (use.writes) use.storage->bump_version();
  }
  void add(const Ref<Storage>& storage, bool writes) {
    for (Use& use : uses_)
      if (use.storage.get() == storage.get()) return void(use.writes |= writes);
    uses_.push_back({storage, writes});
  }

 private:
  struct Use {
    Ref<Storage> storage;
    bool writes;
  };
  std::vector<Use> uses_;
};

}  // namespace

void note_use(const Ref<Storage>& storage, bool writes) {
  Capture& capture = *current_capture;
  if (storage->device() != capture.device()) return;
  if (const MemoryBlock* const block = storage->block(); block && capture.allocated(block)) return;
  if (!capture.storages) {
    auto made = std::make_unique<CapturedStorages>();
    Replayed* const storages = made.get();
    (void)capture.add(std::move(made), 0);
    capture.storages = storages;
  }
  static_cast<CapturedStorages*>(capture.storages)->add(storage, writes);
}

}  // namespace lockstep::detail
