#include "lockstep/tensor/nn/slab_reduction.h"

#include <algorithm>

#include "lockstep/kernels/api.h"
#include "lockstep/tensor/nn/gradient_chain.h"
#include "lockstep/tensor/nn/gradient_owners.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

namespace {

// Home receives smaller runs from all devices sooner than what needs more copies starts.
constexpr std::size_t kLargeBytes = 1 << 20;

}  // namespace

SlabReduction::Range SlabReduction::range_of(SlabSet::Slab& slab, const SlabRun& run, bool in_place_of_grads) {
  const auto& first = entry(slab, run.begin);
  const auto& last = entry(slab, run.end - 1);
  Range range{first.offset_bytes, last.offset_bytes + last.bytes, {}};
  const std::size_t bytes = range.end - range.begin;
  if (bytes == 0) return range;
  range.sum = in_place_of_grads ? detail::slab_range(slab.grads, slab.dtype, range.begin, bytes)
                                : Tensor::over(Storage::allocate(home_, bytes), slab.dtype,
                                               {static_cast<std::int64_t>(bytes / size_of(slab.dtype))}, {1});
  return range;
}

Tensor SlabReduction::sum(const SlabRun& run, const std::vector<Tensor>& matrices) {
  const bool in_place_of_grads = becomes_grads(run);
  const std::lock_guard lock(set_.reduce_mutex);
  Tensor sum = range_of(set_.slabs[run.slab], run, in_place_of_grads).sum;
  if (!sum.defined()) return sum;
  OrderedSumArgs args{{}, sum.out()};
  for (const Tensor& matrix : matrices) {
    View view = sum.view();
    view.data = matrix.view().data;  // which home can read, as if it were its own
    args.terms.push_back({view});
  }
  detail::launch(home_, args);
  const auto away = std::count_if(run.devices.begin(), run.devices.end(), [&](Device d) { return d != home_; });
  count(sum.bytes(), static_cast<std::size_t>(away));
  return sum;
}

SlabReduction::Terms SlabReduction::terms(const SlabRun& run, bool in_place_of_grads) {
  const std::lock_guard lock(set_.reduce_mutex);
  SlabSet::Slab& slab = set_.slabs[run.slab];
  const auto [begin, end, sum] = range_of(slab, run, in_place_of_grads);
  Terms terms{{}, sum};
  if (!sum.defined()) return terms;
  for (const Device device : run.devices)
    terms.parts.push_back(
        detail::slab_range(slab.incoming[static_cast<std::size_t>(ordinal(device))], slab.dtype, begin, end - begin));
  return terms;
}

std::unique_ptr<detail::SectionSum> SlabReduction::sections(const Terms& first, std::int64_t longest,
                                                            std::int64_t count) {
  std::vector<Device> devices;
  for (const Tensor& part : first.parts) devices.push_back(part.device());
  if (detail::sums_by_owners(first.parts, home_)) return detail::owner_sum(devices, home_, first.sum.dtype(), longest);
  if (detail::sums_along_chain(first.parts, home_)) return detail::chain_sum(devices, home_, first.sum.dtype(), count);
  return nullptr;
}

void SlabReduction::count(const SlabRun& run) {
  const std::lock_guard lock(set_.reduce_mutex);
  count(payload_bytes(set_.slabs[run.slab], run), hops(run) > 1 ? run.devices.size() : 1);
}

Tensor SlabReduction::sum(const SlabRun& run) {
  auto [parts, sum] = terms(run, becomes_grads(run));
  if (!sum.defined()) return sum;
  std::unique_lock lock(set_.reduce_mutex);
  const bool large = sum.bytes() >= kLargeBytes;
  const bool by_transport =
      large && set_.transport && std::ranges::equal(set_.transport->devices(), run.devices);  // one thread at a time
  if (by_transport) set_.transport->sum(parts, sum);
  lock.unlock();
  if (!by_transport && large && detail::sums_by_owners(parts, home_)) {
    detail::sum_by_owners(parts, sum);
    count(run);
    return sum;
  }
  if (!by_transport && large && hops(run) > 1 && detail::sums_along_chain(parts, home_)) {
    detail::sum_along_chain(parts, sum);
    count(run);
    return sum;
  }
  if (!by_transport) sum_at_home(parts, sum);
  lock.lock();
  count(payload_bytes(set_.slabs[run.slab], run), hops(run));
  return sum;
}

SlabSet::Entry& SlabReduction::entry(SlabSet::Slab& slab, std::size_t position) {
  return set_.entries[static_cast<std::size_t>(slab.entries[position])];
}

// Of the run, without the padding between parameters.
std::size_t SlabReduction::payload_bytes(SlabSet::Slab& slab, const SlabRun& run) {
  std::size_t bytes = 0;
  for (std::size_t i = run.begin; i < run.end; ++i) bytes += entry(slab, i).bytes;
  return bytes;
}

void SlabReduction::count(std::size_t payload, std::size_t copies) {
  set_.reduced.bytes += payload * copies;
  set_.reduced.copies += copies;
}

bool SlabReduction::becomes_grads(const SlabRun& run) {
  const std::lock_guard reduce_lock(set_.reduce_mutex);
  SlabSet::Slab& slab = set_.slabs[run.slab];
  for (std::size_t i = run.begin; i < run.end; ++i) {
    const SlabSet::Entry& target = entry(slab, i);
    ParameterBody& body = *run.bodies[i - run.begin];
    if (target.body != &body || (target.grad && target.grad->use_count() > 1)) return false;
    auto& leaf = static_cast<LeafNode&>(*body.leaf);
    std::lock_guard lock(leaf.mutex);
    if (leaf.hooks || leaf.grad.defined() || leaf.sparse.defined()) return false;
  }
  if (!slab.grads) slab.grads = detail::zeroed_slab(home_, slab.dtype, slab.bytes);
  return true;
}

void SlabReduction::sum_at_home(const std::vector<Tensor>& parts, Tensor& sum) {
  // All copies are under way before the first is waited for.
  std::vector<Tensor> here;
  for (const Tensor& part : parts) here.push_back(part.to(home_));
  sum.copy_(here[0]);
  for (std::size_t i = 1; i < here.size(); ++i) sum.add_(here[i]);
}

// Adds the sum to the grad of a run's parameter; hooks see it first. They run without a lock: they may ask for
// figures, and move the module.
void SlabReduction::finish(const SlabRun& run, std::size_t position, const Tensor& sum) {
  SlabSet::Slab& slab = set_.slabs[run.slab];
  const std::size_t origin = entry(slab, run.begin).offset_bytes;
  SlabSet::Entry& target = entry(slab, position);
  ParameterBody& body = *run.bodies[position - run.begin];
  auto& leaf = static_cast<LeafNode&>(*body.leaf);
  Tensor gradient = sum.defined() && target.bytes > 0
                        ? Tensor::over(sum.storage(), slab.dtype, body.shape, body.strides(),
                                       static_cast<std::int64_t>((target.offset_bytes - origin) / size_of(slab.dtype)))
                        : Tensor::over(Storage::allocate(home_, 0), slab.dtype, body.shape, body.strides());
  if (leaf.hooks) detail::run_gradient_hooks(leaf, {&gradient, 1});
  Tensor grad;
  bool has_rows;
  {
    std::lock_guard lock(leaf.mutex);
    grad = leaf.grad;
    has_rows = leaf.sparse.defined();
  }
  if (!grad.defined() && !has_rows && place_in_slab(slab, target, body, gradient)) {
    leaf.run_post_accumulate_hooks();
  } else {
    grad = Tensor();
    leaf.accumulate(leaf.brought_home(gradient));
  }
}

// Makes grad the parameter's range of the gradient slab, unless the parameter has left it or somebody still looks at
// an older gradient there.
bool SlabReduction::place_in_slab(SlabSet::Slab& slab, SlabSet::Entry& target, ParameterBody& body,
                                  const Tensor& gradient) {
  const std::lock_guard reduce_lock(set_.reduce_mutex);
  if (target.body != &body) return false;
  if (!slab.grads) slab.grads = detail::zeroed_slab(home_, slab.dtype, slab.bytes);
  if (!target.grad) target.grad = Storage::slice(slab.grads, target.offset_bytes, target.bytes);
  if (target.grad->use_count() > 1) return false;
  Tensor grad = Tensor::over(target.grad, slab.dtype, body.shape, body.strides());
  if (grad.data() == gradient.data()) {
    grad.mark_changed();  // the sum was formed there
  } else {
    grad.copy_(gradient);
  }
  auto& leaf = static_cast<LeafNode&>(*body.leaf);
  std::lock_guard lock(leaf.mutex);
  leaf.grad = std::move(grad);
  return true;
}

void SlabReduction::finish(const SlabRun& run, const Tensor& sum) {
  for (std::size_t i = run.begin; i < run.end; ++i) finish(run, i, sum);
}

}  // namespace lockstep
