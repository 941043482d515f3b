#include "lockstep/tensor/nn/slab_set.h"

#include <algorithm>

#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/memory/alignment.h"
#include "lockstep/tensor/ops/math_ops.h"

namespace lockstep {

namespace detail {

Tensor slab_range(const Ref<Storage>& slab, DType dtype, std::size_t offset_bytes, std::size_t bytes) {
  const auto count = static_cast<std::int64_t>(bytes / size_of(dtype));
  return Tensor::over(Storage::slice(slab, offset_bytes, bytes), dtype, {count}, {1});
}

Ref<Storage> zeroed_slab(Device device, DType dtype, std::size_t bytes) {
  Ref<Storage> slab = Storage::allocate(device, bytes);
  slab_range(slab, dtype, 0, bytes).fill_(0);
  return slab;
}

void leave_slabs(ParameterBody& body) {
  if (const std::shared_ptr<SlabSet> set = body.slabs) {
    set->forget(body);
    body.slabs = nullptr;
    body.slab_entry = -1;
  }
}

}  // namespace detail

namespace {
// The values of a slab on a device. Others are filled from there while the device goes on.
void make_values(SlabSet::Slab& slab, Device device) {
  const auto at = static_cast<std::size_t>(ordinal(device));
  Ref<Storage> values = detail::zeroed_slab(device, slab.dtype, slab.bytes);
  values->expect_reads();
  slab.values[at] = std::move(values);  // not before: who finds them takes them to be whole
  slab.reads[at].store(slab.values[at]->pending_reads(), std::memory_order_release);
}
}  // namespace

void SlabSet::place(std::span<ParameterBody* const> bodies) {
  if (bodies.empty()) return;
  NoGrad no_grad;
  const std::shared_ptr<SlabSet> set(new SlabSet(bodies.front()->home.device()));
  for (ParameterBody* body : bodies) {
    auto slab = std::find_if(set->slabs.begin(), set->slabs.end(), [&](const Slab& s) {
      return s.dtype == body->dtype && s.buffers == body->is_buffer && s.sparse == body->sparse;
    });
    if (slab == set->slabs.end())
      slab = set->slabs.insert(slab, Slab{.dtype = body->dtype,
                                          .buffers = body->is_buffer,
                                          .sparse = body->sparse,
                                          .values = std::vector<Ref<Storage>>(all_devices().size()),
                                          .incoming = std::vector<Ref<Storage>>(all_devices().size())});
    slab->entries.push_back(static_cast<int>(set->entries.size()));
    set->entries.push_back(
        {body, static_cast<int>(slab - set->slabs.begin()), slab->bytes, body->home.bytes(), {}, {}});
    slab->bytes += detail::aligned_bytes(body->home.bytes());
  }
  const auto home = static_cast<std::size_t>(ordinal(set->home_));
  for (Slab& slab : set->slabs) {
    slab.reads.reset(new std::atomic<PendingReads*>[all_devices().size()]());
    make_values(slab, set->home_);
  }
  // All memory is there: from here on nothing fails half way.
  for (std::size_t i = 0; i < set->entries.size(); ++i) {
    Entry& entry = set->entries[i];
    ParameterBody& body = *entry.body;
    entry.home =
        Storage::slice(set->slabs[static_cast<std::size_t>(entry.slab)].values[home], entry.offset_bytes, entry.bytes);
    Tensor::over(entry.home, body.dtype, body.shape, body.strides()).copy_(body.home.detach());
    LOCKSTEP_EDGE(body.home.storage()->record_use(current_stream(set->home_)));
    entry.home->set_version(body.home.version());  // what graphs have saved stays valid
    body.home.set_storage(entry.home, 0);
    body.slabs = set;
    body.slab_entry = static_cast<int>(i);
  }
}

void SlabSet::forget(ParameterBody& body) {
  std::unique_lock lock(mutex, std::defer_lock), reduce_lock(reduce_mutex, std::defer_lock);
  if (detail::process_ends()) {
    if (std::try_lock(lock, reduce_lock) != -1) return;  // who holds it rests for ever, and never looks at it
  } else {
    lock.lock();
    reduce_lock.lock();
  }
  Entry& entry = entries[static_cast<std::size_t>(body.slab_entry)];
  entry.body = nullptr;
  entry.home.reset();
  entry.grad.reset();
}

Slot& SlabSet::slot_for(Entry& entry, Device device) {
  const int at = ordinal(device);
  if (Slot* slot = entry.body->slot(at)) return *slot;
  Slab& slab = slabs[static_cast<std::size_t>(entry.slab)];
  Ref<Storage>& values = slab.values[static_cast<std::size_t>(at)];
  if (!values) make_values(slab, device);
  return entry.body->make_slot(at, Tensor::over(Storage::slice(values, entry.offset_bytes, entry.bytes),
                                                entry.body->dtype, entry.body->shape, entry.body->strides()));
}

}  // namespace lockstep
