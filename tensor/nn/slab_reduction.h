// Sums of the gradients that replicas have left in their slabs. Private to the library.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/tensor/nn/section_sum.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

// Adjacent parameters of one slab that the same replicas have gradients for.
struct SlabRun {
  std::size_t slab;
  std::size_t begin, end;              // positions in slab.entries
  std::vector<Device> devices;         // in replica order
  std::vector<ParameterBody*> bodies;  // by position
};

// Adds up, in replica order, home first: small runs at home, larger ones by the devices, a share each, and the largest
// along a chain of them. The bits are the same either way.
class SlabReduction {
 public:
  explicit SlabReduction(SlabSet& set) : set_(set), home_(set.home()) {}

  // Whether the sum of a run may be formed where the gradients are to be: none of its parameters has one, nobody looks
  // at an older one there, and no hook wants to see the new one first. Makes the place, on home's current stream.
  bool becomes_grads(const SlabRun& run);
  // What is added up for a run, in replica order, and where: flat, at home, in the place of the gradients or in new
  // memory. The sum is undefined when there are no elements.
  struct Terms {
    std::vector<Tensor> parts;
    Tensor sum;
  };
  Terms terms(const SlabRun& run, bool in_place_of_grads);
  // Of the devices of a run, for sections of it like `first`: of `longest` elements at most, and `count` together. Null
  // where home adds up by itself.
  std::unique_ptr<detail::SectionSum> sections(const Terms& first, std::int64_t longest, std::int64_t count);
  // Adds to the figures what `sections` or the sum of a run moves.
  void count(const SlabRun& run);

  // Enqueues the sum of a run on the current streams, and gives it.
  Tensor sum(const SlabRun& run);
  // Of matrices that home can read, each in the layout of the run's one parameter, in place of what is in the slabs.
  Tensor sum(const SlabRun& run, const std::vector<Tensor>& matrices);

  // Adds its sum to the grads of the run's parameters, on home's current stream.
  void finish(const SlabRun& run, const Tensor& sum);

 private:
  struct Range {
    std::size_t begin, end;  // bytes of the slab
    Tensor sum;              // at home, to be written; undefined when there are no elements
  };
  Range range_of(SlabSet::Slab& slab, const SlabRun& run, bool in_place_of_grads);
  SlabSet::Entry& entry(SlabSet::Slab& slab, std::size_t position);
  std::size_t payload_bytes(SlabSet::Slab& slab, const SlabRun& run);
  std::size_t hops(const SlabRun& run) const { return run.devices.size() - (run.devices[0] == home_ ? 1 : 0); }
  void count(std::size_t payload, std::size_t copies);
  void sum_at_home(const std::vector<Tensor>& parts, Tensor& sum);
  void finish(const SlabRun& run, std::size_t position, const Tensor& sum);
  bool place_in_slab(SlabSet::Slab& slab, SlabSet::Entry& target, ParameterBody& body, const Tensor& gradient);

  SlabSet& set_;
  Device home_;
};

}  // namespace lockstep
