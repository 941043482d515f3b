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
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/ddp/bucket.h"
#include "lockstep/parallel/ddp/bucket_state.h"
#include "lockstep/parallel/ddp/comm_hook.h"
#include "lockstep/parallel/ddp/gathered_rows.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/ddp/timeline.h"
#include "lockstep/parallel/join/joinable.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/tensor/engine/leaf_node.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep::detail {

// The steps that are announced; a bucket's is followed by its number.
inline constexpr std::string_view kStepOrder = "order", kStepBegin = "begin", kStepBucket = "bucket ",
                                  kStepUsed = "used", kStepLate = "late";

inline std::size_t mebibytes(double amount) { return static_cast<std::size_t>(amount * (1 << 20)); }

// Of the buckets, in bytes of gradients.
struct BucketLimits {
  std::size_t first, others;
};

// Belongs to the thread of its rank; what the hooks of a backward call is serialised by it.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // What is about to be communicated, for ranks that shadow it (Joinable::announce).
  using Announce = std::function<JoinTurn(std::string_view step)>;

  // `parameters` require gradients. The communicator, and what `announce` uses, outlive the reducer.
  static std::shared_ptr<Reducer> make(std::vector<NamedParameter> parameters, Communicator& communicator,
                                       const DistributedDataParallelOptions& options, BucketLimits limits,
                                       Announce announce);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  // Around a forward in grad mode. Its gradients are to be reduced, or to stay on this rank. begin_forward communicates
  // only when it `reduces` and is `training`; throws Error, and aborts the communicator, when a reduction before it
  // began and did not end. Of `results` only leaves matter.
  // `holds_buckets`: none is reduced before the end of the backward.
  void begin_forward(bool reduces, bool training, bool holds_buckets);
  void end_forward(bool reduces, std::span<const Tensor> results);

  // Why `hook` cannot be registered now; "": it can.
  std::string hook_problem(const CommHook& hook);
  void set_hook(CommHook hook);

  // On a rank that has run out of inputs: its part of a step that the others have announced. Its own gradients stay
  // what they are.
  void shadow(std::string_view step, const JoinTurn& turn);

  void report(DdpLoggingData& data);

  DdpBucketState bucket_state();
  // Why the state cannot be loaded now; "": it can.
  std::string bucket_state_problem(const DdpBucketState& state);
  void load_bucket_state(const DdpBucketState& state);

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
  struct Pending {
    std::size_t parts = 0;                     // that are not final
    std::vector<detail::StreamBody*> writers;  // of those that are
    GatheredRows rows;
    // With a hook:
    SparseGradient own_rows;
    std::optional<GradBucket> given;
    std::shared_ptr<std::vector<bool>> lost;  // GradBucket::lost, where parameters may be unused
    Work work;
  };
  // What is said of a bucket in each iteration.
  struct Label {
    std::string step;  // that is announced
    std::shared_ptr<const std::vector<NamedParameter>> parameters;
  };
  // Graph nodes that a thread made in a forward: its numbers up to `last`.
  struct Forward {
    std::uint32_t numbering;
    std::uint64_t last;
    auto operator<=>(const Forward&) const = default;  // NOLINT(modernize-use-nullptr): what it compares with 0
  };

  Reducer(std::vector<NamedParameter> parameters, Communicator& communicator,
          const DistributedDataParallelOptions& options, BucketLimits limits, Announce announce);

  class InGraph;  // what a graph tells it
  // Called by the hooks and at the end of a backward.
  void on_gradient(std::size_t index);
  void on_backward_end(std::uint64_t number);
  void check_only_reducer(const Variable& variable);
  void forget_shared_leaves();
  bool reduces_backward();
  bool goes_through_forward() const;
  void begin_backward(std::uint64_t number);
  void begin_iteration();
  void check_capture(bool may_rebuild) const;
  void join_capture();
  void give_up_iteration();
  void find_unreached();
  void give_away_unreached(int device);

  std::vector<int> initial_order() const;
  void build_buckets(std::vector<int> order);
  void rebuild_buckets();
  void mark_ready(std::size_t index, bool unused);
  void store(Variable& variable);
  void launch_ready_buckets();
  void sum_used_map(const std::vector<std::int32_t>& used);
  // Calls `communicate` with the reducer's streams current, that of the communicator's device and `local`, after what
  // is on `writers`, which are of `local`'s device.
  template <class F>
  void on_own_streams(const Stream& local, std::span<detail::StreamBody* const> writers, F&& communicate) {
    for (detail::StreamBody* writer : writers) LOCKSTEP_EDGE(local.wait_for(*writer));
    LOCKSTEP_EDGE_SCOPE(StreamScope, here, stream_);
    if (local == stream_) return communicate();
    LOCKSTEP_EDGE_SCOPE(StreamScope, there, local);
    communicate();
  }
  void launch_bucket(std::size_t bucket);
  void reduce(std::size_t bucket);
  void shadow_bucket(std::size_t bucket);
  SparseGradient own_rows(const Variable& variable) const;
  void prepare_rows(std::size_t bucket);
  void join_rows(std::size_t bucket);
  static void put_rows(const Variable& variable, SparseGradient rows);
  template <class F>
  void guard_hook(std::size_t bucket, F&& call);
  void call_hook(std::size_t bucket);
  bool hook_is_late() const;
  void finish_hook();
  void take_rows(std::size_t bucket);
  void tell_lost();
  void close_iteration();
  void finalize();
  void finalize_unused();
  std::vector<std::uint64_t> bucket_bytes() const;
  bool learns_graph() const { return options_.static_graph && !learned_; }
  bool may_skip() const { return options_.find_unused_parameters || options_.static_graph; }
  bool hooked() const { return hook_.call != nullptr; }
  // Then gradients are final, where they are.
  bool alone() const { return communicator_.size() == 1 && !hooked(); }
  bool in_bucket(const Variable& variable) const;
  bool counts(const Variable& variable) const;
  // Stays the parameter's while that is frozen.
  static LeafNode& leaf(const Variable& variable);
  const Tensor& part(const Variable& variable) const {
    return buckets_[static_cast<std::size_t>(variable.bucket)].gradient(variable.slot);
  }
  const Stream& local_stream(const Bucket& bucket) const {
    return streams_[static_cast<std::size_t>(
        variables_[static_cast<std::size_t>(bucket.slots()[0].parameter)].entry.device)];
  }
  const Variable& first_of(std::size_t bucket) const {
    return variables_[static_cast<std::size_t>(buckets_[bucket].slots()[0].parameter)];
  }
  std::string list(const std::function<bool(const Variable&)>& which) const;
  [[noreturn]] void fail(const std::string& message);

  Communicator& communicator_;
  const DistributedDataParallelOptions options_;
  const Announce announce_;
  // Of high priority: what is reduced is waited for by other ranks, and the backward is long.
  Stream stream_;                // of the communicator's device
  std::vector<Stream> streams_;  // of the parameters' devices, by number; stream_ where it is that
  CommHook hook_;                // empty: averages
  std::vector<Variable> variables_;
  BucketLimits limits_;
  std::vector<int> layout_;  // variables in the order in which buckets_ took them up
  std::vector<Bucket> buckets_;
  std::vector<Pending> pending_;        // by bucket
  std::vector<Label> labels_;           // by bucket
  std::size_t next_bucket_ = 0;         // the first that is not launched
  std::vector<std::size_t> unreached_;  // variables that get no gradient in this iteration, and are not ready yet
  std::vector<int> order_;              // variables as they became ready in this iteration
  std::vector<int> last_order_;
  std::map<Forward, std::uint64_t> forwards_;  // whose gradients are to be reduced: nodes from that number on
  std::uint64_t forward_first_ = 0;            // node of the one in progress
  std::vector<std::uint64_t> open_;            // backwards in progress that reduce
  std::uint64_t last_local_ = 0;               // the last one that does not
  bool started_ = false;                       // an iteration, by its first gradient
  bool holds_buckets_ = false;                 // until its last backward is over,
  bool closing_ = false;                       // as it is now
  int backwards_ = 0;                          // of this iteration
  int divisor_ = 1;                            // of this iteration's sums
  bool divisor_may_fall_ = false;
  std::uint64_t reductions_ = 0;  // iterations that are finished, on this rank or in its shadow
  bool settled_ = false;          // one of them, with the buckets that there are
  bool shares_leaves_ = false;    // with another reducer, or a hook of the program's
  bool learned_ = false;          // a static graph, in an iteration of this rank
  bool shadowing_ = false;        // others' steps, without gradients
  bool rebuilt_ = false, layout_changed_ = false;
  Tensor used_map_;  // i32 by variable: how many ranks used it
  std::vector<bool> last_unused_;
  bool same_unused_ = true;
  DdpTimeline timeline_;
  std::recursive_mutex mutex_;  // hooks may come from the backward threads of several devices
};

}  // namespace lockstep::detail
