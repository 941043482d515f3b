// The reducer of DistributedDataParallel: follows which gradients of a backward are ready and averages them over the
// ranks, bucket by bucket, on a stream of its own while the backward goes on.
//
// A backward reduces when its graph has a node of a forward whose gradients are to be reduced, and takes its turn only
// then: what other forwards say meanwhile does not matter. What is reduced is what each rank's grad holds, so that it
// does not matter either how often gradients were reduced, added up or left alone before: averages of averages stay
// averages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/bucket.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/ddp/timeline.h"
#include "lockstep/tensor/engine/leaf_node.h"
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

  // Around a forward in grad mode. Its gradients are to be reduced, or to stay on this rank. begin_forward communicates
  // only when it `reduces` and is `training`; throws Error, and aborts the communicator, when a reduction before it
  // began and did not end. Of `results` only leaves matter.
  void begin_forward(bool reduces, bool training);
  void end_forward(bool reduces, std::span<const Tensor> results);

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
    bool is_result = false;     // of the last forward that had it as a result, the gradient is to be reduced
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
    std::size_t parts = 0;                     // that are not final
    std::vector<detail::StreamBody*> writers;  // of those that are
    GatheredRows rows;
  };
  // Graph nodes that a thread made in a forward: its numbers up to `last`.
  struct Forward {
    std::uint32_t numbering;
    std::uint64_t last;
    auto operator<=>(const Forward&) const = default;
  };

  Reducer(std::vector<NamedParameter> parameters, Communicator& communicator,
          const DistributedDataParallelOptions& options);

  // Called by the hooks and at the end of a backward.
  void on_gradient(std::size_t index);
  void on_backward_end(std::uint64_t number);
  bool reduces_backward();
  bool goes_through_forward() const;
  void begin_backward(std::uint64_t number);
  void begin_iteration();
  void give_away_unused();

  void build_buckets(std::span<const int> order);
  void rebuild_buckets();
  void mark_ready(std::size_t index, bool unused);
  void store(Variable& variable);
  void launch_ready_buckets();
  void launch_used_map();
  template <class F>
  void on_own_stream(std::span<detail::StreamBody* const> writers, F&& communicate);
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
  bool in_bucket(const Variable& variable) const;
  bool counts(const Variable& variable) const;
  // Stays the parameter's while that is frozen.
  static LeafNode& leaf(const Variable& variable);
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
  std::map<Forward, std::uint64_t> forwards_;  // whose gradients are to be reduced: nodes from that number on
  std::uint64_t forward_first_ = 0;            // node of the one in progress
  std::vector<std::uint64_t> open_;            // backwards in progress that reduce
  std::uint64_t last_local_ = 0;               // the last one that does not
  bool started_ = false;                       // an iteration, by its first gradient
  int backwards_ = 0;                          // of this iteration
  std::uint64_t reductions_ = 0;               // iterations that are finished
  bool rebuilt_ = false, layout_changed_ = false;
  Tensor used_map_;  // i32 by variable: how many ranks used it
  std::vector<bool> last_unused_;
  bool same_unused_ = true;
  DdpTimeline timeline_;
  std::recursive_mutex mutex_;  // hooks may come from the backward threads of several devices
};

}  // namespace lockstep::detail
