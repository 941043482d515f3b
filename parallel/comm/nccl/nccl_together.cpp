// Collectives of ranks that one thread works for: a group of NCCL's, as its documentation asks of a process that has
// several devices (NVIDIA, "Group Calls").
#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::nccl {

void Rank::issue_together(std::span<const std::shared_ptr<Rank>> ranks, std::span<const std::vector<Collective>> calls,
                          std::span<const Stream> streams) {
  const Collective& first = calls[0][0];
  const char* const name = to_string(first.kind);
  const Deadline deadline = Deadline::after(first.timeout);
  std::vector<std::unique_lock<std::mutex>> uses;  // in the order of the ranks: this thread alone has several
  for (const auto& rank : ranks) {
    rank->check();
    uses.emplace_back(rank->use_);
    if (!rank->comm_) rank->check();
  }
  const Result result = in_group(library(), [&](const auto& add) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const cuda::CurrentDevice current(ranks[r]->device_);
      const Target to{ranks[r]->comm_, native_stream(streams[r])};
      for (const Collective& each : calls[r])
        if (each.count > 0) add([&] { return ranks[r]->issue(each, to); });
    }
  });
  if (result != kSuccess && result != kInProgress) throw CommError(0, name, ranks[0]->explain(result));
  // One after the other: who waits lets go of a rank now and then, and takes it again.
  for (auto& use : uses) use.unlock();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::unique_lock use(ranks[r]->use_);
    ranks[r]->wait_until_ready(use, name, deadline, first.timeout);
  }
}

void Rank::launch_together(std::span<const std::shared_ptr<Rank>> ranks, std::span<const std::vector<Collective>> calls,
                           std::span<const Stream> streams) {
  std::size_t begun = 0, enqueued = 0;
  const auto settle = [&] {
    for (; enqueued < begun; ++enqueued) detail::end_collective();
  };
  // All are at fault where one is: the others would wait for it.
  const auto broken = [&](const CommError& error) {
    settle();
    for (const auto& rank : ranks) {
      rank->fail(error);
      rank->mark_reported();
    }
    for (const auto& rank : ranks) rank->wait_for_abort();
  };
  try {
    for (; begun < ranks.size(); ++begun) detail::begin_collective();
    issue_together(ranks, calls, streams);
    for (; enqueued < ranks.size(); ++enqueued) {
      Rank& rank = *ranks[enqueued];
      const Collective& last = calls[enqueued].back();
      PendingWork entry{
          .fingerprint = fingerprint(last), .deadline = Deadline::after(last.timeout).time(), .timeout = last.timeout};
      const cuda::CurrentDevice current(rank.device_);
      entry.done.record(streams[enqueued]);
      const std::lock_guard lock(rank.state_);
      rank.last_enqueued_ = entry.fingerprint;
      rank.last_number_ = last.sequence;
      rank.pending_.push_back(std::move(entry));
    }
  } catch (const CommError& error) {
    broken(error);
    throw;
  } catch (...) {
    broken(CommError(0, to_string(calls[0][0].kind), detail::describe(std::current_exception())));
    throw;
  }
}

}  // namespace lockstep::nccl
