// A graph of cuDNN's operations as one of its engines computes it. Private to the library.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/kernels/cuda/cudnn_graph.h"

namespace lockstep::cudnn {

// For which GPU a plan is made: the one of a handle, or one that is described (cuDNN 9.8), which need not be there.
struct PlanTarget {
  Handle handle = nullptr;
  Descriptor device_properties = nullptr;
};

// What a plan is to compute, and what its engine may do.
struct PlanRequest {
  std::function<std::vector<Descriptor>(Maker&)> operations;
  // Bytes of scratch memory that the engine may ask for: a function of sizes, never of how much memory is free.
  std::int64_t most_workspace = 0;
  bool tensor_cores = true;
  bool only_tensor_cores = false;  // no plan at all rather than an engine without them
};

// Kernels that were compiled for a graph, and take other sizes too: plans of the same graph need not compile again.
class KernelCache {
 public:
  explicit KernelCache(const Library& library) : library_(library) {}
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;
  ~KernelCache() {
    if (made_) library_.descriptor_destroy(made_);
  }
  // Of this graph, if it is the first one.
  Descriptor of(Maker& maker, Descriptor graph);
  Descriptor descriptor() const { return made_; }

 private:
  const Library& library_;
  Descriptor made_ = nullptr;
};

// Where an array or scalar of the graph is.
struct Operand {
  std::int64_t id;
  const void* data;
};

class Plan {
 public:
  // The first engine in cuDNN's own order that has a plan within the limit and none of these notes: sums that depend on
  // how blocks take turns; inputs or sums that are rounded to fewer bits; transforms (Winograd, FFT), which carry an
  // infinity or NaN to windows that do not hold it; tensor cores where they are not asked for. Null where there is
  // none. With a cache, of kernels for all sizes; its plans go before it.
  static std::unique_ptr<Plan> make(const Library& library, const PlanTarget& target, Device device, const char* op,
                                    const PlanRequest& request, KernelCache* cache = nullptr);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  std::size_t workspace_bytes() const { return static_cast<std::size_t>(workspace_bytes_); }
  std::int64_t engine() const { return engine_; }  // cuDNN's number, of this version
  bool tensor_cores() const { return tensor_cores_; }
  std::size_t descriptors() const { return descriptors_.size(); }
  // On the stream of the handle.
  void run(Handle handle, Device device, const char* op, std::span<const Operand> operands, void* workspace) const;

 private:
  explicit Plan(const Library& library) : library_(library) {}

  const Library& library_;
  std::vector<Descriptor> descriptors_;  // what the plan is made of
  Descriptor plan_ = nullptr;
  std::int64_t workspace_bytes_ = 0, engine_ = -1;
  bool tensor_cores_ = false;
};

}  // namespace lockstep::cudnn
