// Summing the gradients of replicas into the home parameters.
//
// Every device k sums a range of each run over all replicas, in replica order, and home gathers the ranges: the work
// and the traffic are balanced, and the bits do not depend on who owns a range or who was faster.
#include <algorithm>

#include "lockstep/runtime/copy.h"
#include "lockstep/runtime/internal/edge.h"
#include "lockstep/runtime/trace.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops_math.h"

namespace lockstep {

namespace {

// Ranges smaller than this are not worth sending around: home sums them alone.
constexpr std::size_t kBalanceBytes = 64 * 1024;

int replica_of(const ParameterBody& body, Device device) {
  if (body.home.device() == device) return -1;  // home comes first
  return body.slot(ordinal(device))->replica.load(std::memory_order_relaxed);
}

struct Run {
  std::size_t slab;
  std::size_t begin, end;  // positions in slab.entries
  std::vector<Device> devices;
};

class Reduction {
 public:
  explicit Reduction(SlabSet& set) : set_(set), home_(set.home()) {}

  void reduce(const Run& run) {
    SlabSet::Slab& slab = set_.slabs[run.slab];
    const auto& first = entry(slab, run.begin);
    const auto& last = entry(slab, run.end - 1);
    const std::size_t begin = first.offset_bytes, end = last.offset_bytes + last.bytes;
    if (begin == end) {
      finish(slab, run, Tensor());
      return;
    }
    // Where the sum is put together: this run's range of a buffer at home.
    Tensor sum = Tensor::over(Storage::allocate(home_, end - begin), slab.dtype,
                              {static_cast<std::int64_t>((end - begin) / size_of(slab.dtype))}, {1});
    const std::size_t parts = end - begin < kBalanceBytes ? 1 : run.devices.size();
    const std::size_t unit = 256;
    const std::size_t part = ((end - begin) / parts + unit - 1) / unit * unit;
    for (std::size_t p = 0, at = begin; at < end; ++p, at += part) {
      const std::size_t bytes = std::min(part, end - at);
      const Device owner = parts == 1 ? home_ : run.devices[p];
      Tensor total = sum_range(slab, run, owner, at, bytes);
      Tensor place = sum.narrow(0, static_cast<std::int64_t>((at - begin) / size_of(slab.dtype)), total.count());
      place.copy_(total);
      if (owner != home_) count(bytes);
    }
    finish(slab, run, sum);
  }

 private:
  SlabSet::Entry& entry(SlabSet::Slab& slab, std::size_t position) {
    return set_.entries[static_cast<std::size_t>(slab.entries[position])];
  }
  void count(std::size_t bytes) {
    set_.reduced.bytes += bytes;
    ++set_.reduced.copies;
  }

  // The sum of one range over the replicas, on `owner`.
  Tensor sum_range(SlabSet::Slab& slab, const Run& run, Device owner, std::size_t at, std::size_t bytes) {
    Tensor total;
    for (Device device : run.devices) {
      Tensor piece = detail::slab_range(slab.incoming[ordinal(device)], slab.dtype, at, bytes);
      if (device != owner) {
        piece = piece.to(owner);
        count(bytes);
      }
      if (!total.defined()) {
        total = device == owner ? piece.clone() : piece;
      } else {
        total.add_(piece);
      }
    }
    return total;
  }

  // Adds the sums to the grads of a run's parameters; hooks see each sum first.
  void finish(SlabSet::Slab& slab, const Run& run, const Tensor& sum) {
    const std::size_t origin = entry(slab, run.begin).offset_bytes;
    for (std::size_t i = run.begin; i < run.end; ++i) {
      SlabSet::Entry& target = entry(slab, i);
      ParameterBody& body = *target.body;
      auto& leaf = static_cast<LeafNode&>(*body.leaf);
      Tensor gradient =
          sum.defined() && target.bytes > 0
              ? Tensor::over(sum.storage(), slab.dtype, body.shape, contiguous_strides(body.shape),
                             static_cast<std::int64_t>((target.offset_bytes - origin) / size_of(slab.dtype)))
              : Tensor::over(Storage::allocate(home_, 0), slab.dtype, body.shape, contiguous_strides(body.shape));
      if (leaf.hooks) detail::run_gradient_hooks(leaf, {&gradient, 1});
      Tensor grad;
      bool has_rows;
      {
        std::lock_guard lock(leaf.mutex);
        grad = leaf.grad;
        has_rows = leaf.sparse.defined();
      }
      if (!grad.defined() && !has_rows && place_in_slab(slab, target, gradient)) {
        leaf.run_after_accumulate();
      } else {
        grad = Tensor();
        leaf.accumulate(gradient);
      }
    }
  }

  // Makes grad the parameter's range of the gradient slab, unless somebody still looks at an older gradient there.
  bool place_in_slab(SlabSet::Slab& slab, SlabSet::Entry& target, const Tensor& gradient) {
    if (!slab.grads) slab.grads = detail::zeroed_slab(home_, slab.dtype, slab.bytes);
    if (!target.grad) target.grad = Storage::slice(slab.grads, target.offset_bytes, target.bytes);
    if (target.grad->use_count() > 1) return false;
    ParameterBody& body = *target.body;
    Tensor grad = Tensor::over(target.grad, slab.dtype, body.shape, contiguous_strides(body.shape));
    grad.copy_(gradient);
    auto& leaf = static_cast<LeafNode&>(*body.leaf);
    std::lock_guard lock(leaf.mutex);
    leaf.grad = std::move(grad);
    return true;
  }

  SlabSet& set_;
  Device home_;
};

// By entry, in replica order.
using ByEntry = std::map<int, std::vector<ReplicaGradient>>;

// The rows of a parameter that got nothing but rows go to its grad, replica by replica.
void append_rows(SlabSet& set, const std::vector<ReplicaGradient>& gradients) {
  std::vector<SparseGradient> pieces;
  for (const ReplicaGradient& gradient : gradients) {
    const SparseGradient& rows = gradient.rows;
    pieces.push_back({rows.indices.to(set.home()), rows.values.to(set.home()), rows.shape});
    if (gradient.device == set.home()) continue;
    set.reduced.bytes += rows.indices.bytes() + rows.values.bytes();
    set.reduced.copies += 2;
  }
  static_cast<LeafNode&>(*gradients.front().body->leaf).accumulate_rows(detail::join_rows(pieces));
}

}  // namespace

void store_replica_gradient(ParameterBody& body, Device device, const Tensor& gradient) {
  LOCKSTEP_CHECK(gradient.shape() == body.shape && gradient.dtype() == body.dtype,
                 "[backward] expected an operation that gives ", body.describe(), " a gradient like it, got ",
                 gradient.describe());
  SlabSet& set = *body.slabs;
  const SlabSet::Entry& entry = set.entries[static_cast<std::size_t>(body.slab_entry)];
  SlabSet::Slab& slab = set.slabs[static_cast<std::size_t>(entry.slab)];
  const int at = ordinal(device);
  {
    std::lock_guard lock(set.reduce_mutex);
    if (!slab.incoming[at]) slab.incoming[at] = detail::zeroed_slab(device, slab.dtype, slab.bytes);
  }
  Tensor::over(Storage::slice(slab.incoming[at], entry.offset_bytes, entry.bytes), body.dtype, body.shape,
               contiguous_strides(body.shape))
      .copy_(gradient);
}

void reduce_replica_gradients(std::vector<ReplicaGradient> stored) {
  const trace::Scope span("reduce");
  NoGrad no_grad;
  const auto begin = Clock::now();
  std::map<SlabSet*, ByEntry> by_set;
  for (ReplicaGradient& gradient : stored) {
    for (const Tensor& part : {gradient.rows.indices, gradient.rows.values})
      if (part.defined()) LOCKSTEP_EDGE(part.storage()->record_use(current_stream(gradient.device)));
    by_set[gradient.body->slabs.get()][gradient.body->slab_entry].push_back(std::move(gradient));
  }
  for (auto& [set, gradients_by_entry] : by_set) {
    std::map<int, std::vector<Device>> by_entry;  // of what is in the slabs
    std::vector<const std::vector<ReplicaGradient>*> rows_alone;
    for (auto& [index, gradients] : gradients_by_entry) {
      std::sort(gradients.begin(), gradients.end(), [](const ReplicaGradient& a, const ReplicaGradient& b) {
        return replica_of(*a.body, a.device) < replica_of(*b.body, b.device);
      });
      const auto has_rows = [](const ReplicaGradient& gradient) { return gradient.rows.defined(); };
      if (std::all_of(gradients.begin(), gradients.end(), has_rows)) {
        rows_alone.push_back(&gradients);
        continue;
      }
      for (const ReplicaGradient& gradient : gradients) {
        if (has_rows(gradient)) store_replica_gradient(*gradient.body, gradient.device, gradient.rows.to_dense());
        by_entry[index].push_back(gradient.device);
      }
    }
    std::lock_guard lock(set->reduce_mutex);
    for (const std::vector<ReplicaGradient>* gradients : rows_alone) append_rows(*set, *gradients);
    Reduction reduction(*set);
    for (std::size_t s = 0; s < set->slabs.size(); ++s) {
      const std::vector<int>& order = set->slabs[s].entries;
      for (std::size_t i = 0; i < order.size();) {
        const auto found = by_entry.find(order[i]);
        if (found == by_entry.end()) {
          ++i;
          continue;
        }
        std::size_t end = i + 1;
        for (; end < order.size(); ++end)
          if (const auto next = by_entry.find(order[end]); next == by_entry.end() || next->second != found->second) break;
        reduction.reduce({s, i, end, found->second});
        i = end;
      }
    }
    set->reduced.nanoseconds += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count());
  }
}

}  // namespace lockstep
