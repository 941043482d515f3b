// Communicators: a group of ranks (threads or processes) that move and reduce tensors together.
//
// A rank's calls are enqueued on the current stream of its device: earlier work of the stream comes before, later work
// after, and the host does not wait where the device works on its own. All ranks make the same calls in the same order.
// What they do not agree on, a rank that fails or dies, and silence beyond the deadline become a CommError that names
// the rank and the collective: thrown by the call, or where the host next waits for the stream. After it the
// communicator is broken: every later call throws the first error. Its ranks can make a new one.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/collective.h"
#include "lockstep/parallel/comm/survivors.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct CopyArgs;

namespace detail {

// Who hears of a communicator's first failure, from the thread that found it, and by which numbers it knows the ranks.
struct FailureReport {
  void (*send)(const std::vector<int>& ranks, const CommError& error) noexcept = nullptr;  // null: nobody hears of it
  std::vector<int> ranks = {};
  // That these ranks go on without the others.
  void (*send_recovery)(const std::vector<int>& ranks) noexcept = nullptr;

  void operator()(const CommError& error) const noexcept {
    if (send) send(ranks, error);
  }
};

}  // namespace detail

// A send or a receive of a batch; see Communicator::transfer.
struct Transfer {
  bool sends = false;
  int peer = -1;  // the other rank
  Tensor tensor;

  static Transfer to(int destination, Tensor tensor) { return {true, destination, std::move(tensor)}; }
  static Transfer from(int source, Tensor tensor) { return {false, source, std::move(tensor)}; }
};

struct ShrinkOptions {
  std::vector<int> exclude = {};  // ranks that are left out, whether they come or not
  // How long ranks that are not known to be gone are waited for. Default: the communicator's. What comes after that,
  // when the members make their communicator, has the communicator's time-out again.
  std::optional<Milliseconds> timeout = std::nullopt;
};

// Of one thread at a time, but for abort(), broken() and failure(). Calls on several streams are carried out in order.
class LOCKSTEP_API Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Waits for nothing. Ranks that still wait for this one get a CommError that says that it left.
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Where this rank's tensors are; `cpu` is no such place.
  Device device() const { return device_; }
  virtual const char* backend() const = 0;  // its name; see CommunicatorOptions::backend
  // On how many hosts the ranks are, where it knows that without asking them; 0: it does not.
  virtual int host_count() const { return 0; }
  Milliseconds timeout() const { return timeout_; }
  void set_timeout(Milliseconds timeout) { timeout_ = timeout; }  // of later calls

  // ---- collectives. Tensors are contiguous and on device(); gradients do not flow through. Throws InvalidArgument,
  // before anything is enqueued, for tensors that do not fit each other or the number of ranks. Where two tensors are
  // given, the smaller may be this rank's part of the larger (or both one tensor, for all_reduce and reduce).
  void all_reduce(const Tensor& tensor, RedOp reduction = RedOp::sum) { all_reduce(tensor, tensor, reduction); }
  void all_reduce(const Tensor& input, const Tensor& output, RedOp reduction = RedOp::sum);
  void broadcast(const Tensor& tensor, int root);
  // `output` is only written at the root, and may be undefined elsewhere.
  void reduce(const Tensor& input, const Tensor& output, int root, RedOp reduction = RedOp::sum);
  // `output` has size() times the elements of `input`, rank by rank.
  void all_gather(const Tensor& input, const Tensor& output);
  void gather(const Tensor& input, const Tensor& output, int root);   // output: at the root
  void scatter(const Tensor& input, const Tensor& output, int root);  // input: at the root
  // `input` has size() times the elements of `output`; rank r gets the reduced r-th part.
  void reduce_scatter(const Tensor& input, const Tensor& output, RedOp reduction = RedOp::sum);
  // Part r of the input goes to rank r; part r of the output came from rank r. Equal sizes; not in place.
  void all_to_all(const Tensor& input, const Tensor& output);
  // Uneven parts: input_counts[r] elements of the input go to rank r, output_counts[r] of the output came from it, in
  // the order of the ranks; 0 is a count, and the counts are all there is in the tensors. Where what a rank sends is
  // not what the other expects, both are in the error. NCCL between processes compares only with check_collectives:
  // without it such ranks wait for the deadline, or get wrong elements. Made of sends and receives (see transfer), of
  // which there may be others before and after.
  void all_to_all(const Tensor& input, std::span<const std::int64_t> input_counts, const Tensor& output,
                  std::span<const std::int64_t> output_counts);
  // The same for several tensors, of any dtypes, in one call. All are looked at before any is enqueued. All ranks give
  // as many; an error says which tensor it was about ("tensor 1 of 3", from 0). Whether ranks give the same is compared
  // as for single tensors: over NCCL between processes only with check_collectives.
  void all_reduce(std::span<const Tensor> tensors, RedOp reduction = RedOp::sum);
  void broadcast(std::span<const Tensor> tensors, int root);
  void all_gather(std::span<const Tensor> inputs, std::span<const Tensor> outputs);
  // Between two ranks, in order per pair. A send may wait until it is received: of two ranks that send to each other
  // one must receive first.
  void send(const Tensor& tensor, int destination);
  void recv(const Tensor& tensor, int source);
  // Sends and receives at the same time, in any order: ranks that send to each other do not wait in a circle. Only
  // those between the same two ranks in one direction keep the order of the list. What is received into overlaps
  // nothing else of the list. The other side's may be in a batch, or by themselves. Over shared memory and MPI a batch
  // starts a thread per other rank and direction, but one, and ends them again.
  void transfer(std::span<const Transfer> transfers);

  // ---- between the hosts. They block the calling thread, and do not wait for work on devices.
  // Returns when every rank has come here; the error at the deadline, on every rank that has, names all that have not.
  void barrier();
  // What every rank has brought, by rank. Meant for what is short (names, shapes, settings).
  std::vector<std::string> all_gather_bytes(const std::string& mine);
  std::string broadcast_bytes(const std::string& mine, int root);

  // A communicator of the ranks that give the same color, ordered by (key, rank); null for a negative color. Every rank
  // calls it. Calls of both, on any streams, come in one order on all ranks: they may wait for each other.
  std::unique_ptr<Communicator> split(int color, int key = 0);

  // A communicator of the ranks that are left, also when this one is broken. Who wants to go on calls it. It returns
  // when all ranks have come but those that are excluded by any who has come, or have left (their communicator is gone,
  // or their process); at the deadline, with those that have come. They keep their order, and device, backend and
  // timeout of this one. All agree: a rank that comes after the others have decided, or is excluded, gets a CommError.
  // So does every rank whose fellow goes while they meet; it may call shrink again, as all that are left then do.
  //
  // That a process has ended is known over shared memory, and of the ranks of lockstep-run. Over NCCL without it a dead
  // process is waited for until the deadline: exclude failure()->rank.
  //
  // Nothing is broken by it: where this communicator works, it still does. Blocks; does not wait for devices. On CUDA
  // devices the ranks make a new NCCL communicator. Processes meet in their store: when that was served by a rank that
  // has died, it is an error. Throws NotSupported for MPI, whose jobs cannot be mended.
  std::unique_ptr<Communicator> shrink(const ShrinkOptions& options = {});

  // Breaks the communicator for all of its ranks: those that wait get a CommError with this rank and `reason`. Does not
  // wait for them. May be called from any thread.
  void abort(const std::string& reason);
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  std::optional<CommError> failure() const;  // the first one
  // Throws failure() if there is one.
  void check() const;

  // For the library, before the first call. Communicators that split() and shrink() make report to the same.
  void set_failure_report(detail::FailureReport report) { failure_report_ = std::move(report); }

 protected:
  Communicator(int rank, int size, Device device, Milliseconds timeout);

  // Puts the collective on the stream; see Collective for what is certain. Never called with size 1 for send and recv.
  virtual void enqueue(const Collective& collective, const Stream& stream) = 0;
  // Sends and receives that go on at the same time; at least one. Of the same pair and direction, in their order.
  // Throws NotSupported unless it is overridden.
  virtual void enqueue_batch(std::vector<Collective> transfers, const Stream& stream);
  // Brings the messages of all ranks together; blocks. `collective` (an exchange) has number and timeout.
  virtual std::vector<std::string> exchange(const Collective& collective, const std::string& mine) = 0;
  // The ranks of this communicator in `members` (this one is members[index]) make one of their own. `id` is the same
  // for all members, and never used again within the communicator it was first split from.
  virtual std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index,
                                                   const std::string& id) = 0;
  // Where the ranks can agree on who is left, without the communicator; see survivors.h. Throws NotSupported where
  // there is no such place, and unless it is overridden.
  virtual detail::RollCall roll_call();
  // What a capture (runtime/graph/graph.h) in this thread says that it got where it cannot record a collective; "": it
  // can, and enqueue and enqueue_batch record. Then collectives have no numbers: those of a replay count when it comes.
  virtual std::string why_not_captured();
  // Wakes this rank's waits and tells the others. Called once, by the thread that broke the communicator.
  virtual void on_broken(const CommError& error) = 0;

  // Records the first failure and calls on_broken; later ones change nothing. Thread-safe. Returns the first failure.
  CommError break_with(const CommError& error);

 private:
  void submit(Collective collective, const Tensor& input, const Tensor& output);
  void submit_batch(const char* name, std::vector<Collective> transfers, std::span<const Tensor> inputs,
                    std::span<const Tensor> outputs, const CopyArgs& own);
  void use_on(const Stream& stream, const char* name, std::span<const Tensor> inputs, std::span<const Tensor> outputs);
  void check_capture(const char* name, const Stream& stream);
  std::uint64_t& number_of(const Collective& collective);
  std::unique_ptr<Communicator> make_part(const std::vector<int>& members, const std::string& id);
  std::vector<std::string> exchange_bytes(const std::string& mine);

  int rank_, size_;
  Device device_;
  Milliseconds timeout_;
  std::uint64_t sequence_ = 0, exchanges_ = 0, splits_ = 0, shrinks_ = 0;
  const std::uint64_t generation_;              // of the process: a forked child has neither its threads nor its place
  std::vector<std::uint64_t> sent_, received_;  // by rank
  detail::FailureReport failure_report_;
  std::atomic<bool> broken_{false};
  mutable std::mutex mutex_;
  std::optional<CommError> failure_;
};

}  // namespace lockstep
