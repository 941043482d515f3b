// What the replicas of one parallel call get from backwards of their own for parameters that are at home elsewhere.
// Each replica's is deferred until all have returned and is added to the parameters then, in replica order: no bit
// depends on who was first.
#pragma once

#include <array>
#include <functional>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/tensor/engine/gradient_sink.h"

namespace lockstep {

// Of one replica: the sink in its thread's context.
class LOCKSTEP_API DeferredGradients final : public GradientSink {
 public:
  explicit DeferredGradients(Device device) : device_(device) {}

  // Whether the parameter's home is not here.
  bool wants(const LeafNode& leaf) const override;
  void arrive(OwnedGradient& gradient) override;
  // Adds those of one backward to what earlier ones have left.
  void finish(std::vector<OwnedGradient> gradients) override;

  // Adds everything to the parameters' grads, on the current streams. Throws Error when another call trains one of
  // the parameters.
  static void add_all(std::span<DeferredGradients* const> replicas);

 private:
  // In the order in which their slots first got one.
  class List {
   public:
    void merge(OwnedGradient more);  // puts it behind what there is for the same slot
    std::vector<OwnedGradient>& all() { return all_; }

   private:
    struct Hash {
      std::size_t operator()(const std::pair<const LeafNode*, const detail::StreamBody*>& slot) const {
        return std::hash<const void*>()(slot.first) * 31 + std::hash<const void*>()(slot.second);
      }
    };
    using Index = std::unordered_map<std::pair<const LeafNode*, const detail::StreamBody*>, std::size_t, Hash>;
    std::vector<OwnedGradient> all_;
    std::array<Index, 2> index_;  // of those that are not replicated, and of those that are
  };

  const Device device_;
  std::mutex mutex_;
  List gradients_;
};

}  // namespace lockstep
