#include "lockstep/parallel/replica_call.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/parallel/replicas/replica_group.h"
#include "lockstep/parallel/replicas/with_streams.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/mix.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/substitution.h"
#include "lockstep/tensor/nn/deferred_gradients.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {
namespace {

// True while this thread runs a replica, on a device thread or (a lone one) in its caller's.
thread_local bool in_replica = false;

class InReplica {
 public:
  InReplica() : before_(std::exchange(in_replica, true)) {}
  InReplica(const InReplica&) = delete;
  InReplica& operator=(const InReplica&) = delete;
  ~InReplica() { in_replica = before_; }

 private:
  bool before_;
};

// Two calls that post to the same devices in different orders would wait for each other when their replicas do.
std::mutex& post_order() {
  static std::mutex mutex;
  return mutex;
}

// Whether a replica threw it of its own accord, not because another one did not come to where they meet.
bool is_own(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ReplicaGroup::Failure&) {
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace

struct ReplicaCall::Replica {
  Device device;
  std::exception_ptr error;
  std::uint64_t sequence = 0;
  std::optional<DeferredGradients> deferred;  // beside other replicas
  std::atomic<Progress> progress{Progress::pending};
};

ReplicaCall::ReplicaCall(std::span<const Device> devices)
    : count_(devices.size()),
      replicas_(new Replica[devices.size()]),
      join_(std::make_shared<Join>(static_cast<int>(devices.size()))) {
  if (count_ > 1 && lockstep::detail::current_capture) [[unlikely]]
    lockstep::detail::current_capture->refuse("parallel_apply", "replicas, which run in threads of their own");
  for (std::size_t i = 0; i < count_; ++i) {
    replicas_[i].device = devices[i];
    if (count_ > 1) replicas_[i].deferred.emplace(devices[i]);
  }
  if (count_ > 1) group_ = std::make_unique<ReplicaGroup>(std::vector<Device>(devices.begin(), devices.end()));
}

ReplicaCall::~ReplicaCall() { stop_reading(); }

void ReplicaCall::run_in_context(std::size_t replica) {
  ThreadContext context = context_;
  // Depends on the caller's stream and call and on the replica, and on nothing else.
  context.random_stream = mix(mix(context.random_stream, call_number_), replica);
  context.random_counter = 0;
  Replica& mine = replicas_[replica];
  if (mine.deferred) context.gradient_sink = &*mine.deferred;
  const ContextScope scope(context);
  const InReplica inside;
  std::optional<ReplicaGroup::Scope> member;
  if (group_) member.emplace(*group_, static_cast<int>(replica));
  const Reading reading(&reading_);
  try {
    const AutocastThread casts;
    with_streams(streams_, [&] { run(replica); });
  } catch (...) {
    mine.error = std::current_exception();
  }
  if (group_) group_->leave(static_cast<int>(replica), mine.error);
  mine.sequence = thread_context().sequence;
}

void ReplicaCall::run_replica(std::size_t replica) noexcept {
  Replica& mine = replicas_[replica];
  if (mine.progress.load(std::memory_order_acquire) == Progress::pending) {
    const trace::Scope span("replica");
    run_in_context(replica);
  }
  // The caller has given up: what the replica used is dropped here. Else the caller does it, in its own thread.
  if (mine.progress.exchange(Progress::finished, std::memory_order_acq_rel) == Progress::abandoned) {
    forget(replica);
    mine.deferred.reset();
    mine.error = nullptr;
  }
}

void ReplicaCall::run_here() {
  run_in_context(0);
  replicas_[0].progress.store(Progress::finished, std::memory_order_relaxed);
}

// Posts to every device, or to the first few when one refuses. Returns how many.
std::size_t ReplicaCall::post_all(const std::shared_ptr<ReplicaCall>& self, std::exception_ptr& refused) {
  const std::lock_guard lock(post_order());
  for (std::size_t i = 0; i < count_; ++i) {
    try {
      device_thread(replicas_[i].device).post([call = self, i]() mutable {
        const std::shared_ptr<Join> join = call->join_;
        call->run_replica(i);
        call.reset();
        join->done();
      });
    } catch (...) {
      refused = std::current_exception();
      return i;
    }
  }
  return count_;
}

void ReplicaCall::take_over_sequence() const {
  std::uint64_t& sequence = thread_context().sequence;
  for (std::size_t i = 0; i < count_; ++i) sequence = std::max(sequence, replicas_[i].sequence);
}

void ReplicaCall::add_deferred_gradients() {
  std::vector<DeferredGradients*> deferred;
  for (std::size_t i = 0; i < count_; ++i) deferred.push_back(&*replicas_[i].deferred);
  DeferredGradients::add_all(deferred);
}

// In the caller's thread, as everything that the replicas have left.
void ReplicaCall::drop_deferred_gradients() {
  for (std::size_t i = 0; i < count_; ++i) replicas_[i].deferred.reset();
}

void ReplicaCall::throw_failures() {
  std::vector<ReplicaError::Failure> failures;
  std::exception_ptr lowest, lowest_own;
  for (std::size_t i = 0; i < count_; ++i) {
    // Taken out of the call: a task that comes after the deadline may be the last to let go of that.
    const std::exception_ptr error = std::exchange(replicas_[i].error, nullptr);
    if (!error) continue;
    if (!lowest) lowest = error;
    if (!lowest_own && is_own(error)) lowest_own = error;
    failures.push_back({static_cast<int>(i), replicas_[i].device, describe(error)});
  }
  if (!lowest) return;
  try {
    std::rethrow_exception(lowest_own ? lowest_own : lowest);
  } catch (...) {
    std::throw_with_nested(ReplicaError(std::move(failures)));
  }
}

// At the deadline: whoever has returned by now is done with, the others are left to themselves.
void ReplicaCall::give_up(Milliseconds timeout) {
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < count_; ++i) {
    const Progress before = replicas_[i].progress.exchange(Progress::abandoned, std::memory_order_acq_rel);
    if (before == Progress::pending) late.push_back(i);
  }
  if (late.empty()) return;  // just in time
  // After that: who is let go here was late, however soon it returns.
  const std::vector<bool> waited =
      group_->fail("[parallel_apply] expected every replica to return before the deadline of the call");

  std::string running, failed;
  for (const std::size_t i : late) {
    running += cat(running.empty() ? "" : ", ", "replica ", i, " on ", replicas_[i].device,
                   waited[i] ? " (which waits for others)" : "");
  }
  for (std::size_t i = 0; i < count_; ++i) {
    if (std::find(late.begin(), late.end(), i) != late.end()) continue;
    if (const std::exception_ptr error = std::exchange(replicas_[i].error, nullptr)) {
      failed += cat("; replica ", i, " on ", replicas_[i].device, " threw: ", describe(error));
    }
    forget(i);
    replicas_[i].deferred.reset();
  }
  const std::string message = cat("[parallel_apply] expected every replica to return within ", timeout.count(),
                                  " ms, still running: ", running, failed);
  for (const std::size_t i : late) device_thread(replicas_[i].device).abandon(message);
  throw TimeoutError(message);
}

void run_replicas(const std::shared_ptr<ReplicaCall>& call, Milliseconds timeout) {
  check_not_in_replica("parallel_apply");
  ThreadContext& context = thread_context();
  call->call_number_ = context.random_counter++;
  call->context_ = context;
  if (call->count_ == 1) {
    call->run_here();
    call->take_over_sequence();
    call->throw_failures();
    return;
  }

  for (std::size_t i = 0; i < call->count_; ++i) {
    const Stream stream = current_stream(call->replicas_[i].device);
    if (stream != default_stream(call->replicas_[i].device)) LOCKSTEP_EDGE(call->streams_.push_back(&stream.body()));
    check_answering({&call->replicas_[i].device, 1});
  }
  if (context.substitution) {
    call->substitution_ = context.substitution->flattened();
    call->context_.substitution = call->substitution_.get();
  }
  // Backwards in the replicas are of one call: they may train the same parameters.
  if (call->context_.training_call == 0) call->context_.training_call = next_training_call();
  call->reading_ = Reading::share();
  std::exception_ptr refused;
  const std::size_t posted = call->post_all(call, refused);
  for (std::size_t i = posted; i < call->count_; ++i) {
    call->replicas_[i].progress.store(ReplicaCall::Progress::finished, std::memory_order_relaxed);
    call->group_->leave(static_cast<int>(i), refused);
    call->join_->done();
  }
  LOCKSTEP_EDGE(if (!call->join_->wait(Deadline::after(timeout))) call->give_up(timeout));
  struct Drop {
    ReplicaCall& call;
    ~Drop() {
      call.drop_deferred_gradients();
      call.stop_reading();
    }
  } const drop{*call};
  call->take_over_sequence();
  if (refused) std::rethrow_exception(refused);
  call->throw_failures();
  call->add_deferred_gradients();
}

void check_not_in_replica(const char* op) {
  if (!in_replica && DeviceThread::current() == nullptr) [[likely]]
    return;
  fail<Error>("[", op,
              "] expected a call from outside of replicas, got one from inside a replica or a backward "
              "pass of one: it would wait for the device thread that it occupies");
}

void check_answering(std::span<const Device> devices) {
  for (const Device device : devices) {
    DeviceThread& thread = device_thread(device);
    if (thread.lost()) [[unlikely]]
      thread.post([] {});  // throws, with the reason
  }
}

}  // namespace lockstep::detail
