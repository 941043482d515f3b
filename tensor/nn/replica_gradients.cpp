// Summing the gradients of replicas into the home parameters, in replica order: small runs at home, larger ones by the
// devices, a share each, and the largest along a chain of them; where home can read all of them where they are, from
// there. The bits are the same either way, and do not depend on who was faster.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/gradient_chain.h"
#include "lockstep/tensor/nn/gradient_owners.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

namespace {

// Home receives smaller runs from all devices sooner than what needs more copies starts.
constexpr std::size_t kLargeBytes = 1 << 20;

// A copy of more costs more than its launch, and what is kept until the end of a backward is memory.
constexpr std::size_t kKeptBytes = 256 << 10;

[[noreturn]] void fail_moved(const ParameterBody& body) {
  throw Error(cat("[backward] expected ", body.describe(),
                  " to stay where it is until its gradients have been summed "
                  "over the replicas; its module was moved, converted or wrapped anew meanwhile"));
}

int replica_of(const OwnedGradient& gradient) {
  const ParameterBody& body = *body_of(*gradient.leaf);
  const Device device = gradient.stream->device;
  if (body.home.device() == device) return -1;  // home comes first
  const Slot* slot = body.slot(ordinal(device));
  if (!slot) fail_moved(body);
  return slot->replica.load(std::memory_order_relaxed);
}

// For the whole of a backward, which hooks may use to move what it trains.
std::shared_ptr<SlabSet> slabs_of(const ParameterBody& body) {
  std::shared_ptr<SlabSet> set = body.slabs;
  if (!set) fail_moved(body);
  return set;
}

// Host devices whose work is over when a call returns read each other's memory: nothing need be copied for a sum.
bool in_one_memory(Device home, Device other) {
  const auto open = [](const DeviceProperties& of) { return of.host_memory && of.synchronous && !of.checked; };
  return open(properties(home)) && open(properties(other)) && kernels::table(home.type()).entry<OrderedSumArgs>();
}

// Whether home can read the gradient where it is, and nobody else writes there before.
bool readable_in_place(const OwnedGradient& gradient) {
  const Tensor& home = body_of(*gradient.leaf)->home;
  const Tensor& matrix = gradient.matrix;
  return matrix.defined() && in_one_memory(home.device(), gradient.stream->device) &&
         matrix.contiguous_layout(home.memory_format()) && matrix.sole_owner();
}

struct Run {
  std::size_t slab;
  std::size_t begin, end;  // positions in slab.entries
  std::vector<Device> devices;
  std::vector<ParameterBody*> bodies;  // by position
};

class SlabReduction {
 public:
  explicit SlabReduction(SlabSet& set) : set_(set), home_(set.home()) {}

  void reduce(const Run& run) {
    const Tensor sum = sum_of(run);
    for (std::size_t i = run.begin; i < run.end; ++i) finish(run, i, sum);
  }

  // The gradients of the one parameter of the run, each in the parameter's layout, where home can read it.
  void reduce(const Run& run, const std::vector<Tensor>& matrices) { finish(run, run.begin, sum_of(run, matrices)); }

 private:
  // Of the run's range, at home.
  struct Range {
    std::size_t begin, end;  // bytes of the slab
    Tensor sum;              // to be written; undefined when there are no elements
  };
  Range range_of(SlabSet::Slab& slab, const Run& run) {
    const auto& first = entry(slab, run.begin);
    const auto& last = entry(slab, run.end - 1);
    Range range{first.offset_bytes, last.offset_bytes + last.bytes, {}};
    const std::size_t bytes = range.end - range.begin;
    if (bytes == 0) return range;
    range.sum = becomes_grads(slab, run) ? detail::slab_range(slab.grads, slab.dtype, range.begin, bytes)
                                         : Tensor::over(Storage::allocate(home_, bytes), slab.dtype,
                                                        {static_cast<std::int64_t>(bytes / size_of(slab.dtype))}, {1});
    return range;
  }

  Tensor sum_of(const Run& run, const std::vector<Tensor>& matrices) {
    const std::lock_guard lock(set_.reduce_mutex);
    Tensor sum = range_of(set_.slabs[run.slab], run).sum;
    if (!sum.defined()) return sum;
    OrderedSumArgs args{{}, sum.out()};
    for (const Tensor& matrix : matrices) {
      View view = sum.view();
      view.data = matrix.view().data;  // which home can read, as if it were its own
      args.terms.push_back({view});
    }
    detail::launch(home_, args);
    for (const Device device : run.devices)
      if (device != home_) count(sum.bytes());
    return sum;
  }

  Tensor sum_of(const Run& run) {
    const std::lock_guard lock(set_.reduce_mutex);
    SlabSet::Slab& slab = set_.slabs[run.slab];
    auto [begin, end, sum] = range_of(slab, run);
    if (!sum.defined()) return sum;
    std::vector<Tensor> parts;  // in replica order
    for (const Device device : run.devices)
      parts.push_back(
          detail::slab_range(slab.incoming[static_cast<std::size_t>(ordinal(device))], slab.dtype, begin, end - begin));
    const std::size_t payload = payload_bytes(slab, run);
    const std::size_t hops = parts.size() - (run.devices[0] == home_ ? 1 : 0);
    if (end - begin >= kLargeBytes && set_.transport && std::ranges::equal(set_.transport->devices(), run.devices)) {
      set_.transport->sum(parts, sum);
      for (std::size_t i = 0; i < hops; ++i) count(payload);
    } else if (end - begin >= kLargeBytes && detail::sums_by_owners(parts, home_)) {
      detail::sum_by_owners(parts, sum);
      for (std::size_t i = 0; i < (hops > 1 ? parts.size() : 1); ++i) count(payload);
    } else if (end - begin >= kLargeBytes && hops > 1 && detail::sums_along_chain(parts, home_)) {
      detail::sum_along_chain(parts, sum);
      for (std::size_t i = 0; i < parts.size(); ++i) count(payload);
    } else {
      sum_at_home(parts, sum);
      for (std::size_t i = 0; i < hops; ++i) count(payload);
    }
    return sum;
  }

  SlabSet::Entry& entry(SlabSet::Slab& slab, std::size_t position) {
    return set_.entries[static_cast<std::size_t>(slab.entries[position])];
  }
  // Of the run, without the padding between parameters.
  std::size_t payload_bytes(SlabSet::Slab& slab, const Run& run) {
    std::size_t bytes = 0;
    for (std::size_t i = run.begin; i < run.end; ++i) bytes += entry(slab, i).bytes;
    return bytes;
  }
  void count(std::size_t payload) {
    set_.reduced.bytes += payload;
    ++set_.reduced.copies;
  }

  // Whether the sum may be formed where the grads are to be: none of the run's parameters has one, nobody looks at an
  // older one there, and no hook wants to see the new one first.
  bool becomes_grads(SlabSet::Slab& slab, const Run& run) {
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

  void sum_at_home(const std::vector<Tensor>& parts, Tensor& sum) {
    // All copies are under way before the first is waited for.
    std::vector<Tensor> here;
    for (const Tensor& part : parts) here.push_back(part.to(home_));
    sum.copy_(here[0]);
    for (std::size_t i = 1; i < here.size(); ++i) sum.add_(here[i]);
  }

  // Adds the sum to the grad of a run's parameter; hooks see it first. They run without a lock: they may ask for
  // figures, and move the module.
  void finish(const Run& run, std::size_t position, const Tensor& sum) {
    SlabSet::Slab& slab = set_.slabs[run.slab];
    const std::size_t origin = entry(slab, run.begin).offset_bytes;
    SlabSet::Entry& target = entry(slab, position);
    ParameterBody& body = *run.bodies[position - run.begin];
    auto& leaf = static_cast<LeafNode&>(*body.leaf);
    Tensor gradient =
        sum.defined() && target.bytes > 0
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
  bool place_in_slab(SlabSet::Slab& slab, SlabSet::Entry& target, ParameterBody& body, const Tensor& gradient) {
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

  SlabSet& set_;
  Device home_;
};

// By entry, in replica order.
using ByEntry = std::map<int, std::vector<OwnedGradient>>;

// The rows of a parameter that got nothing but rows go to its grad, replica by replica.
void append_rows(SlabSet& set, const std::vector<OwnedGradient>& gradients) {
  std::vector<SparseGradient> pieces;
  for (const OwnedGradient& gradient : gradients) {
    const SparseGradient& rows = gradient.rows;
    pieces.push_back({rows.indices.to(set.home()), rows.values.to(set.home()), rows.shape});
    if (gradient.stream->device == set.home()) continue;
    const std::lock_guard lock(set.reduce_mutex);
    set.reduced.bytes += rows.indices.bytes() + rows.values.bytes();
    set.reduced.copies += 2;
  }
  LeafNode& leaf = *gradients.front().leaf;
  leaf.accumulate_rows(leaf.brought_home(detail::join_rows(pieces)));
}

}  // namespace

namespace {

void check_like(const ParameterBody& body, const Tensor& gradient) {
  LOCKSTEP_CHECK(gradient.shape() == body.shape && gradient.dtype() == body.dtype,
                 "[backward] expected an operation that gives ", body.describe(), " a gradient like it, got ",
                 gradient.describe());
}

// The place of the parameter's gradient in the gradient slab of a device, for work on its current stream.
Tensor place_for_gradient(const ParameterBody& body, Device device) {
  const std::shared_ptr<SlabSet> owner = slabs_of(body);
  SlabSet& set = *owner;
  const SlabSet::Entry& entry = set.entries[static_cast<std::size_t>(body.slab_entry)];
  SlabSet::Slab& slab = set.slabs[static_cast<std::size_t>(entry.slab)];
  const auto at = static_cast<std::size_t>(ordinal(device));
  {
    std::lock_guard lock(set.reduce_mutex);
    if (!slab.incoming[at]) slab.incoming[at] = detail::zeroed_slab(device, slab.dtype, slab.bytes);
  }
  return Tensor::over(Storage::slice(slab.incoming[at], entry.offset_bytes, entry.bytes), body.dtype, body.shape,
                      body.strides());
}

// Stores the matrices that were kept, in one launch per device.
void store_matrices(const std::vector<OwnedGradient*>& gradients) {
  struct Copies {
    CopyManyArgs args;
    std::vector<Tensor> tensors;  // which the views point into
  };
  std::map<Device, Copies> by_device;
  for (OwnedGradient* gradient : gradients) {
    const Device device = gradient->stream->device;
    const ParameterBody& body = *body_of(*gradient->leaf);
    const Tensor matrix = std::exchange(gradient->matrix, {}).contiguous(body.home.memory_format());
    check_like(body, matrix);
    LOCKSTEP_EDGE(matrix.storage()->record_use(current_stream(device)));
    const Tensor place = place_for_gradient(body, device);
    if (!kernels::table(device.type()).entry<CopyManyArgs>()) {
      Tensor(place).copy_(matrix);
      continue;
    }
    Copies& copies = by_device[device];
    copies.args.tensors.push_back({matrix.in(), place.out()});
    copies.tensors.insert(copies.tensors.end(), {matrix, place});
  }
  for (const auto& [device, copies] : by_device) detail::launch(device, copies.args);
}

}  // namespace

void store_replica_gradient(ParameterBody& body, Device device, const Tensor& gradient) {
  check_like(body, gradient);
  place_for_gradient(body, device).copy_(gradient);
}

namespace {

// How the gradients of a slab set are summed, by entry.
struct Found {
  std::vector<const std::vector<OwnedGradient>*> rows_alone;
  std::map<int, std::vector<Device>> in_slabs;  // there, or about to be stored there
  std::set<int> in_place;                       // matrices that home reads where they are
};

// Each entry's gradients come into replica order. Matrices for the slabs are added to `to_store`.
Found sort_by_way(ByEntry& gradients_by_entry, std::vector<OwnedGradient*>& to_store) {
  Found found;
  for (auto& of_entry : gradients_by_entry) {
    const int index = of_entry.first;
    std::vector<OwnedGradient>& gradients = of_entry.second;
    std::sort(gradients.begin(), gradients.end(),
              [](const OwnedGradient& a, const OwnedGradient& b) { return replica_of(a) < replica_of(b); });
    const auto all = [&](auto&& which) { return std::all_of(gradients.begin(), gradients.end(), which); };
    if (all([](const OwnedGradient& gradient) { return gradient.rows.defined(); })) {
      found.rows_alone.push_back(&gradients);
    } else if (all(readable_in_place)) {
      for (const OwnedGradient& gradient : gradients) check_like(*body_of(*gradient.leaf), gradient.matrix);
      found.in_place.insert(index);
    } else {
      for (OwnedGradient& gradient : gradients) {
        if (gradient.rows.defined())
          store_replica_gradient(*body_of(*gradient.leaf), gradient.stream->device, gradient.rows.to_dense());
        if (gradient.matrix.defined()) to_store.push_back(&gradient);
        found.in_slabs[index].push_back(gradient.stream->device);
      }
    }
  }
  return found;
}

void reduce_set(SlabSet& set, ByEntry& gradients_by_entry, const Found& found) {
  for (const std::vector<OwnedGradient>* gradients : found.rows_alone) append_rows(set, *gradients);
  SlabReduction reduction(set);
  for (std::size_t s = 0; s < set.slabs.size(); ++s) {
    const std::vector<int>& order = set.slabs[s].entries;
    for (std::size_t i = 0; i < order.size();) {
      Run run{s, i, i, {}, {}};
      if (found.in_place.contains(order[i])) {
        std::vector<OwnedGradient>& gradients = gradients_by_entry[order[i]];
        run.bodies.push_back(body_of(*gradients.front().leaf));
        std::vector<Tensor> matrices;
        for (OwnedGradient& gradient : gradients) {
          run.devices.push_back(gradient.stream->device);
          matrices.push_back(std::exchange(gradient.matrix, {}));
        }
        i = ++run.end;
        reduction.reduce(run, matrices);
        continue;
      }
      const auto first = found.in_slabs.find(order[i]);
      if (first == found.in_slabs.end()) {
        ++i;
        continue;
      }
      run.devices = first->second;
      for (; run.end < order.size(); ++run.end) {
        const auto next = found.in_slabs.find(order[run.end]);
        if (next == found.in_slabs.end() || next->second != run.devices) break;
        run.bodies.push_back(body_of(*gradients_by_entry[order[run.end]].front().leaf));
      }
      i = run.end;
      reduction.reduce(run);
    }
  }
}

}  // namespace

void reduce_replica_gradients(std::vector<OwnedGradient> arrived) {
  const trace::Scope span("reduce");
  NoGrad no_grad;
  const auto begin = Clock::now();
  std::map<std::shared_ptr<SlabSet>, ByEntry> by_set;
  for (OwnedGradient& gradient : arrived) {
    for (const Tensor& part : {gradient.rows.indices, gradient.rows.values})
      if (part.defined()) LOCKSTEP_EDGE(part.storage()->record_use(current_stream(gradient.stream->device)));
    const ParameterBody& body = *body_of(*gradient.leaf);
    by_set[slabs_of(body)][body.slab_entry].push_back(std::move(gradient));
  }
  std::vector<Found> found;
  std::vector<OwnedGradient*> to_store;
  for (auto& [set, gradients] : by_set) found.push_back(sort_by_way(gradients, to_store));
  store_matrices(to_store);
  auto of_set = found.begin();
  for (auto& [set, gradients] : by_set) {
    reduce_set(*set, gradients, *of_set++);
    const std::lock_guard lock(set->reduce_mutex);
    set->reduced.nanoseconds += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  }
}

namespace {
class ReplicaGradients final : public GradientSink {
 public:
  bool wants(const LeafNode&) const override { return false; }
  void arrive(OwnedGradient& gradient) override {
    const Tensor& matrix = gradient.matrix;
    if (!matrix.defined()) return;
    check_like(*body_of(*gradient.leaf), matrix);
    if (readable_in_place(gradient)) return;
    // Small ones are stored together at the end, unless somebody else may write their elements before.
    const MemoryFormat format = body_of(*gradient.leaf)->home.memory_format();
    if (matrix.bytes() <= kKeptBytes && matrix.contiguous_layout(format) && matrix.sole_owner()) return;
    store_replica_gradient(*body_of(*gradient.leaf), gradient.stream->device, gradient.matrix);
    gradient.matrix = {};
  }
  void finish(std::vector<OwnedGradient> gradients) override { reduce_replica_gradients(std::move(gradients)); }
};
}  // namespace

GradientSink& replica_gradients() {
  static ReplicaGradients sink;
  return sink;
}

}  // namespace lockstep
