#include "lockstep/parallel/comm/mpi/mpi_engine.h"

#include <algorithm>
#include <cstdlib>

#include "lockstep/parallel/comm/mpi/mpi_loop.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::detail {
MpiEngine& MpiEngine::instance(Milliseconds timeout) {
  static MpiEngine* const engine = new MpiEngine;  // its thread may outlive main
  engine->start(timeout);
  return *engine;
}

void MpiEngine::start(Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!started_) {
    started_ = true;
    start_service_thread("mpi", [this] {
      Loop loop(*this);
      const std::string problem = loop.begin();
      {
        const std::lock_guard guard(mutex_);
        problem_ = problem.empty() ? "ready" : problem;
        changed_.notify_all();
      }
      if (problem.empty()) loop.run();
      const std::lock_guard guard(mutex_);
      stopped_ = true;
      changed_.notify_all();
    });
    std::atexit([] { instance(Milliseconds(0)).stop(); });
  }
  changed_.wait_for(lock, timeout, [&] { return !problem_.empty(); });
  if (problem_ != "ready" && timeout.count() > 0)
    throw CommError(-1, "mpi",
                    problem_.empty()
                        ? cat("expected all ranks to initialise MPI within ", timeout.count(),
                              " ms, got no answer: one of them has ended before that, or has not come so far")
                        : problem_);
}

// At exit: MPI is finalised, together with the other ranks; not without them, so that the launcher sees that they are
// missing and ends the job.
void MpiEngine::stop() {
  std::unique_lock lock(mutex_);
  if (problem_ != "ready") return;
  commands_.push_back({Command::Kind::stop, nullptr});
  wanted_.notify_all();
  changed_.wait_for(lock, kDefaultTimeout, [&] { return stopped_; });
}

std::int64_t MpiEngine::next_number() {
  const std::lock_guard lock(mutex_);
  return numbers_++;
}

std::shared_ptr<MpiGroup> MpiEngine::open(std::int64_t context, std::vector<int> members, int index) {
  const std::size_t count = members.size();
  std::shared_ptr<MpiGroup> group(new MpiGroup{
      .context = context, .members = std::move(members), .index = index, .gone = std::vector<bool>(count)});
  const std::lock_guard lock(mutex_);
  commands_.push_back({Command::Kind::open, group});
  wanted_.notify_all();
  return group;
}

void MpiEngine::close(std::shared_ptr<MpiGroup> group) {
  const std::lock_guard lock(mutex_);
  commands_.push_back({Command::Kind::close, std::move(group)});
  wanted_.notify_all();
}

void MpiEngine::fail(const std::shared_ptr<MpiGroup>& group, const MpiFailure& failure, bool also_later) {
  const std::lock_guard lock(mutex_);
  if (group->reports || (group->failure && !also_later)) return;
  if (!group->failure) group->failure = failure;
  group->reports = failed_ = true;
  group->still = {};
  commands_.push_back({Command::Kind::fail, group});
  wanted_.notify_all();
  changed_.notify_all();
}

std::optional<MpiFailure> MpiEngine::failure(const MpiGroup& group) const {
  const std::lock_guard lock(mutex_);
  return group.failure;
}

void MpiEngine::silent(const MpiGroup& group, const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  for (const int m : members) silent_.insert(group.members[static_cast<std::size_t>(m)]);
}

MpiEngine::Result MpiEngine::transfer(const std::shared_ptr<MpiGroup>& group, std::span<const MpiMessage> messages,
                                      std::uint64_t sequence, Deadline deadline) {
  if (messages.empty()) return {};
  Batch batch{.group = group, .messages = messages, .sequence = sequence, .deadline = deadline};
  std::unique_lock lock(mutex_);
  batches_.push_back(&batch);
  wanted_.notify_all();
  changed_.wait(lock, [&] { return batch.done; });  // the engine keeps the deadline
  return batch.result;
}

bool MpiEngine::wait_for_turn(const MpiGroup& group, MpiTag tag, const std::uint64_t& turn, std::uint64_t sequence,
                              Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return turn + 1 == sequence || group.stopped(tag, sequence); };
  if (deadline.never()) {
    changed_.wait(lock, over);
  } else {
    changed_.wait_until(lock, deadline.time(), over);
  }
  return turn + 1 == sequence && !group.stopped(tag, sequence);
}

void MpiEngine::next_turn(std::uint64_t& turn) {
  const std::lock_guard lock(mutex_);
  ++turn;
  changed_.notify_all();
}

}  // namespace lockstep::detail
