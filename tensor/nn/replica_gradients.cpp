// Summing the gradients of replicas into the home parameters, in replica order: in slabs, or where home can read all of
// them where they are, from there. The bits are the same either way, and do not depend on who was faster.
#include "lockstep/tensor/nn/replica_gradients.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/gradient_sections.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {

namespace {

// A copy of more costs more than its launch, and what is kept until the end of a backward is memory.
constexpr std::size_t kKeptBytes = 256 << 10;

[[noreturn]] void fail_moved(const ParameterBody& body) {
  throw Error(cat("[backward] expected ", body.describe(),
                  " to stay where it is until its gradients have been summed "
                  "over the replicas; its module was moved, converted or wrapped anew meanwhile"));
}

}  // namespace

int replica_of(const ParameterBody& body, Device device) {
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

namespace {

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

// By entry, in replica order.
using ByEntry = std::map<int, std::vector<OwnedGradient>>;

void count_copies(SlabSet& set, std::size_t bytes, std::size_t copies) {
  const std::lock_guard lock(set.reduce_mutex);
  set.reduced.bytes += bytes;
  set.reduced.copies += copies;
}

// The rows of a parameter that got nothing but rows go to its grad, replica by replica.
void append_rows(SlabSet& set, const std::vector<OwnedGradient>& gradients) {
  std::vector<SparseGradient> pieces;
  for (const OwnedGradient& gradient : gradients) {
    const SparseGradient& rows = gradient.rows;
    pieces.push_back({rows.indices.to(set.home()), rows.values.to(set.home()), rows.shape});
    if (gradient.stream->device != set.home()) count_copies(set, rows.indices.bytes() + rows.values.bytes(), 2);
  }
  LeafNode& leaf = *gradients.front().leaf;
  leaf.accumulate_rows(leaf.brought_home(detail::join_rows(pieces)));
}

// Of a nested backward: the slabs are another one's. In replica order, as everywhere.
void add_beside_slabs(SlabSet& set, std::vector<OwnedGradient>& gradients) {
  std::vector<Tensor> here;  // all copies are under way before the first is waited for
  for (OwnedGradient& gradient : gradients) {
    const Tensor matrix = gradient.rows.defined() ? gradient.rows.to_dense() : std::exchange(gradient.matrix, {});
    const Device device = gradient.stream->device;
    check_like(*body_of(*gradient.leaf), matrix);
    LOCKSTEP_EDGE(matrix.storage()->record_use(current_stream(matrix.device())));
    if (device != set.home()) count_copies(set, matrix.bytes(), 1);
    here.push_back(matrix.to(set.home()));
  }
  Tensor sum = std::exchange(here[0], {});
  // Not in place: those of a backward with create_graph may have been kept as they came.
  for (std::size_t i = 1; i < here.size(); ++i) sum = sum + here[i];
  LeafNode& leaf = *gradients.front().leaf;
  if (leaf.hooks) detail::run_gradient_hooks(leaf, {&sum, 1});
  sum = leaf.brought_home(sum);
  leaf.accumulate(std::move(sum));
}

}  // namespace

void check_like(const ParameterBody& body, const Tensor& gradient) {
  LOCKSTEP_CHECK(gradient.shape() == body.shape && gradient.dtype() == body.dtype,
                 "[backward] expected an operation that gives ", body.describe(), " a gradient like it, got ",
                 gradient.describe());
}

bool may_be_kept(const ParameterBody& body, const Tensor& matrix) {
  return matrix.bytes() <= kKeptBytes && matrix.contiguous_layout(body.home.memory_format()) && matrix.sole_owner();
}

namespace {

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

}  // namespace

void store_matrices(std::span<OwnedGradient* const> gradients) {
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

void store_replica_gradient(ParameterBody& body, Device device, const Tensor& gradient) {
  check_like(body, gradient);
  place_for_gradient(body, device).copy_(gradient);
}

namespace {

int replica_of(const OwnedGradient& gradient) {
  return lockstep::replica_of(*body_of(*gradient.leaf), gradient.stream->device);
}

// How the gradients of a slab set are summed, by entry.
struct Found {
  std::map<int, const BegunSum*> begun;  // by its first entry
  std::vector<const std::vector<OwnedGradient>*> rows_alone;
  std::vector<std::vector<OwnedGradient>*> nested;
  std::map<int, std::vector<Device>> in_slabs;  // there, or about to be stored there
  std::set<int> in_place;                       // matrices that home reads where they are
};

// Each entry's gradients come into replica order. Matrices for the slabs are added to `to_store`.
Found sort_by_way(const std::shared_ptr<SlabSet>& set, ByEntry& gradients_by_entry, std::span<const BegunSum> begun,
                  std::vector<OwnedGradient*>& to_store) {
  Found found;
  std::set<int> have_begun;
  for (const BegunSum& sum : begun) {
    if (sum.set != set) continue;
    const std::vector<int>& order = set->slabs[sum.run.slab].entries;
    found.begun.emplace(order[sum.run.begin], &sum);
    have_begun.insert(order.begin() + static_cast<std::ptrdiff_t>(sum.run.begin),
                      order.begin() + static_cast<std::ptrdiff_t>(sum.run.end));
  }
  for (auto& of_entry : gradients_by_entry) {
    const int index = of_entry.first;
    if (have_begun.contains(index)) continue;
    std::vector<OwnedGradient>& gradients = of_entry.second;
    std::sort(gradients.begin(), gradients.end(),
              [](const OwnedGradient& a, const OwnedGradient& b) { return replica_of(a) < replica_of(b); });
    const auto all = [&](auto&& which) { return std::all_of(gradients.begin(), gradients.end(), which); };
    if (all([](const OwnedGradient& gradient) { return gradient.rows.defined(); })) {
      found.rows_alone.push_back(&gradients);
    } else if (gradients.front().nested) {
      found.nested.push_back(&gradients);
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
  for (std::vector<OwnedGradient>* gradients : found.nested) add_beside_slabs(set, *gradients);
  SlabReduction reduction(set);
  for (std::size_t s = 0; s < set.slabs.size(); ++s) {
    const std::vector<int>& order = set.slabs[s].entries;
    for (std::size_t i = 0; i < order.size();) {
      if (const auto begun = found.begun.find(order[i]); begun != found.begun.end()) {
        i = begun->second->run.end;
        reduction.finish(begun->second->run, begun->second->sum);
        continue;
      }
      SlabRun run{s, i, i, {}, {}};
      if (found.in_place.contains(order[i])) {
        std::vector<OwnedGradient>& gradients = gradients_by_entry[order[i]];
        run.bodies.push_back(body_of(*gradients.front().leaf));
        std::vector<Tensor> matrices;
        for (OwnedGradient& gradient : gradients) {
          run.devices.push_back(gradient.stream->device);
          matrices.push_back(std::exchange(gradient.matrix, {}));
        }
        i = ++run.end;
        reduction.finish(run, reduction.sum(run, matrices));
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
      reduction.finish(run, reduction.sum(run));
    }
  }
}

}  // namespace

void reduce_replica_gradients(std::vector<OwnedGradient> arrived) { reduce_replica_gradients(std::move(arrived), {}); }

void reduce_replica_gradients(std::vector<OwnedGradient> arrived, std::span<const BegunSum> begun) {
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
  for (const BegunSum& sum : begun)
    for (std::size_t i = sum.run.begin; i < sum.run.end; ++i) {
      const ParameterBody& body = *sum.run.bodies[i - sum.run.begin];
      if (body.slabs != sum.set || body.slab_entry != sum.set->slabs[sum.run.slab].entries[i]) fail_moved(body);
    }
  std::vector<Found> found;
  std::vector<OwnedGradient*> to_store;
  for (auto& [set, gradients] : by_set) found.push_back(sort_by_way(set, gradients, begun, to_store));
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
  std::shared_ptr<GradientSink> for_one_backward(std::span<const ExpectedGradient> expected) override {
    return GradientSections::make(expected);
  }
  void arrive(OwnedGradient& gradient) override {
    const Tensor& matrix = gradient.matrix;
    if (!matrix.defined()) return;
    check_like(*body_of(*gradient.leaf), matrix);
    if (gradient.nested) {  // another backward has its gradients where these would go
      const MemoryFormat format = body_of(*gradient.leaf)->home.memory_format();
      if (!(matrix.contiguous_layout(format) && matrix.sole_owner())) gradient.matrix = matrix.clone();
      return;
    }
    if (readable_in_place(gradient)) return;
    // Small ones are stored together at the end.
    if (may_be_kept(*body_of(*gradient.leaf), matrix)) return;
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
