// The reducer of DistributedDataParallel: follows which gradients of a backward are ready and averages them over the
// ranks, bucket by bucket, on a stream of its own while the backward goes on.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/bucket.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/ddp/timeline.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep::detail {

inline std::size_t mebibytes(double amount) { return static_cast<std::size_t>(amount * (1 << 20)); }

// Belongs to the thread of its rank; what the hooks of a backward call is serialised by it.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // `parameters` require gradients and are on the communicator's device. The communicator outlives the reducer.
  static std::shared_ptr<Reducer> make(std::vector<NamedParameter> parameters, Communicator& communicator,
                                       const DistributedDataParallelOptions& options);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  // Before a forward whose gradients are to be reduced; communicates only when `training`. Throws Error, and aborts the
  // communicator, when the reduction before it began and did not end.
  void begin_forward(bool training);
  // After it: from here on gradients are expected. Searches the graph of the outputs where that was asked for.
  void end_forward(std::span<const Tensor> outputs);
  // Gradients of backwards from now on stay on this rank, until the next begin_forward.
  void stay_local();

  void report(DdpLoggingData& data);

 private:
  struct Variable {
    std::string name;
    Parameter parameter;
    BucketEntry entry;
    std::uint64_t hook = 0;
    int bucket = 0;
    std::size_t slot = 0;
    bool used = false;          // got a gradient on this rank since the last reduction
    bool ready = false;         // its part of the bucket is final
    bool unused = false;        // was marked ready without a gradient
    int arrivals = 0;           // backwards that reached it in this iteration
    int expected = -1;          // static graph: arrivals in every iteration
    bool used_anywhere = true;  // static graph: some rank uses it
    Tensor kept;                // the gradient in the bucket that may have to come back
  };
  // Of a sparse parameter: this rank's rows and those of all, with room for as many from each.
  struct GatheredRows {
    std::vector<std::int64_t> counts;  // by rank
    Tensor my_indices, my_values, indices, values;
  };
  struct Pending {
    std::size_t parts = 0;         // that are not final
    std::vector<Stream*> writers;  // of those that are
    GatheredRows rows;
  };
  enum class Phase : std::uint8_t { local, expecting };

  Reducer(std::vector<NamedParameter> parameters, Communicator& communicator,
          const DistributedDataParallelOptions& options);

  // Called by the hooks and at the end of a backward.
  void on_gradient(std::size_t index);
  void on_backward_end();

  void build_buckets(std::span<const int> order);
  void rebuild_buckets();
  void find_unused(std::span<const Tensor> outputs);
  void mark_ready(std::size_t index, bool unused);
  void store(Variable& variable);
  void store_zeros(Variable& variable);
  void launch_ready_buckets();
  void launch_used_map();
  template <class F>
  void on_own_stream(std::span<Stream* const> writers, F&& communicate);
  void reduce(std::size_t bucket);
  void gather_counts(std::size_t bucket);
  void join_gathered(std::size_t bucket);
  void close_iteration();
  void finalize();
  void finalize_unused();
  std::vector<std::uint64_t> bucket_bytes() const;
  bool learns_graph() const { return options_.static_graph && reductions_ == 0; }
  bool may_skip() const { return options_.find_unused_parameters || options_.static_graph; }
  bool alone() const { return communicator_.size() == 1; }  // then gradients are final, where they are
  bool in_bucket(const Variable& variable, const Tensor& grad) const;
  const Tensor& part(const Variable& variable) const {
    return buckets_[static_cast<std::size_t>(variable.bucket)].gradient(variable.slot);
  }
  std::string list(const std::function<bool(const Variable&)>& which) const;
  [[noreturn]] void fail(const std::string& message);

  Communicator& communicator_;
  const DistributedDataParallelOptions options_;
  Stream stream_;
  std::vector<Variable> variables_;
  std::vector<Bucket> buckets_;
  std::vector<Pending> pending_;  // by bucket
  std::size_t next_bucket_ = 0;   // the first that is not launched
  std::vector<int> order_;        // variables as they became ready in this iteration
  std::vector<int> last_order_;
  Phase phase_ = Phase::local;
  int backwards_ = 0;  // of this iteration
  bool in_backward_ = false, started_ = false;
  std::uint64_t reductions_ = 0;  // iterations that are finished
  bool rebuilt_ = false, layout_changed_ = false;
  Tensor used_map_;  // i32 by variable: how many ranks used it
  std::vector<bool> last_unused_;
  bool same_unused_ = true;
  DdpTimeline timeline_;
  std::recursive_mutex mutex_;  // hooks may come from the lanes of several devices
};

}  // namespace lockstep::detail
