// One backward: which nodes take part, what each still waits for, and who runs them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/tensor/engine/gradient_sink.h"

namespace lockstep::detail {

class GraphTask : public std::enable_shared_from_this<GraphTask> {
 public:
  struct Root {
    Edge edge;
    Tensor gradient;
  };
  struct Mode {
    bool accumulate;  // into leaves; else gradients are captured
    bool create_graph;
    bool retain_graph;
  };

  GraphTask(std::vector<Root> roots, std::vector<Edge> captures, Mode mode);

  // Blocks until every node has run or was skipped; throws the first error. Mirror gradients are reduced and callbacks
  // have run when it returns. Gives what arrived at the captures.
  std::vector<Tensor> run();

  std::vector<bool> capture_reached;  // whether the roots depend on it
  std::vector<std::function<void()>> callbacks;
  std::mutex callbacks_mutex;  // nodes of several workers may add

  static GraphTask*& current();  // the one this thread waits for

  const std::uint64_t number = next_number();  // no other has it
  // Its nodes, breadth first from the roots, until `visit` returns false. They stay the same while it runs.
  void visit(const std::function<bool(const Node&)>& visit) const;

 private:
  static std::uint64_t next_number();

  // A gradient on its way into a node, with what fixes its place in the sum.
  struct Contribution {
    std::uint32_t output;
    std::uint64_t sequence;
    int origin;  // device, or replica index for mirrors
    std::uint32_t edge;
    Tensor gradient;
  };
  struct State {
    Node* node;
    std::uint32_t pending = 0;     // edges that have not delivered yet
    std::uint32_t first_edge = 0;  // into targets_
    std::uint32_t delivered = 0;   // edges served so far
    std::uint16_t worker = 0;
    bool needed = true;
    bool runs = true;  // else what arrives is captured, and goes nowhere
    // Of a mirror that ends here, and of a leaf with such mirrors: what arrives is for the owner's sink.
    LeafOwner* owner = nullptr;
    int replica = 0;  // of a mirror
    bool captured = false;
    bool summed = false;                      // `gradient` is a sum of ours: may be added to in place
    bool gets_rows = false;                   // some are on their way, in rows_
    Tensor gradient;                          // of the only output
    std::vector<Tensor> gradients;            // of several outputs
    std::vector<Contribution> contributions;  // with several workers: summed in a fixed order when all are there
  };
  // The gradient of a RowsNode on its way into a leaf or mirror.
  struct Rows {
    std::uint32_t target;
    std::uint64_t sequence;
    int origin;
    SparseGradient gradient;
  };
  // A ready queue: the nodes of some devices whose gradients are complete. One thread at a time runs them.
  struct Worker {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> ready;  // heap: latest node first
    DeviceThread* thread = nullptr;                              // null: the calling thread
    bool active = false;                                         // a run of the worker is posted or in progress
    bool refused = false;  // its thread did not take it: the calling thread runs it
  };

  // The owners of the leaves this backward trains. Until it ends they stay, whatever becomes of their modules.
  struct Claims {
    std::vector<std::shared_ptr<LeafOwner>> owners;
    std::vector<const LeafOwner*> nested;  // of those: another backward trains them already; sorted
    std::size_t claimed = 0;               // the first so many
    LeafOwner* hold(LeafOwner* owner);     // null when there is none, or it is going
    void claim(std::uint64_t call);
    bool has_nested(const LeafOwner* owner) const { return std::ranges::binary_search(nested, owner); }
    void release();
    ~Claims() { release(); }
  };

  // Of index_: where the node is, or would be.
  std::pair<Node*, std::uint32_t>& place_of(const Node* node);
  std::uint32_t index_of(Node* node);  // enters it when it is new
  void traverse();
  void mark_needed();
  void assign_workers();
  void expect_gradients();
  void wait_for_workers();
  void start();
  void run_worker(Worker& worker);
  bool run_refused();
  bool run_next(Worker& worker);
  void execute(std::uint32_t index);
  void gather_contributions(State& state);
  bool takes_rows(std::int32_t target) const;
  void send_rows(const State& from, const Tensor& gradient);
  void pass_rows(const State& from, SparseGradient rows, std::uint64_t sequence, int origin);
  void receive_rows(std::uint32_t index, Tensor& gradient);
  bool is_for_sink(const State& state) const;
  void give_to_sink(const State& state, Tensor matrix, SparseGradient rows);
  void deliver(const State& from, std::uint32_t edge, std::uint32_t target, Tensor gradient);
  void deliver_rest(State& from, std::span<Tensor> gradients);
  void add(State& target, std::uint32_t output, Tensor gradient);
  void arrived(std::uint32_t target) noexcept;
  void make_ready(std::uint32_t index) noexcept;
  void wake(Worker& worker) noexcept;
  void finish_node() noexcept;
  void fail(std::exception_ptr error) noexcept;
  void join_streams();
  void join_too(const GraphTask& inner);
  void forget() noexcept;

  std::vector<Root> roots_;
  std::vector<Edge> captures_;
  std::vector<Tensor> captured_;                                      // by capture
  std::vector<std::pair<std::uint32_t, std::uint32_t>> captures_at_;  // state and capture, in order
  Mode mode_;
  ThreadContext context_;
  std::vector<State> states_;
  std::vector<std::int32_t> targets_;                   // state index by edge; -1: nowhere
  std::vector<std::pair<Node*, std::uint32_t>> index_;  // open addressing
  std::vector<std::unique_ptr<Worker>> workers_;
  Claims claims_;
  GradientSink* sink_ = nullptr;  // the thread's, or that of the mirrors' owners, or own_sink_
  std::shared_ptr<GradientSink> own_sink_;
  std::atomic<std::size_t> remaining_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint32_t> refused_{0};  // counts what became ready on workers that were
  std::mutex mutex_;                       // error_, owned_, rows_
  std::exception_ptr error_;
  std::vector<OwnedGradient> owned_;  // for the sink
  std::vector<Rows> rows_;
  std::vector<detail::StreamBody*> streams_;  // that nodes ran on
};

// `gradient`, made on this thread's current stream, is for a node on `receiver`.
void hand_over_gradient(const Tensor& gradient, const Stream& receiver);
// Where a node's backward runs: on the stream of its forward, but in a capture, which takes work of its own streams
// alone, on the current one if that is another: of leaves that were made before.
StreamBody& stream_of(const Node& node);

}  // namespace lockstep::detail
