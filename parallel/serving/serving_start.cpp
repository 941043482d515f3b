// The threads of a pool: how they begin and end, and what they do beside requests.
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lockstep/parallel/serving/replica.h"
#include "lockstep/parallel/serving/serving_error.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::detail {
namespace {

// For what replicas are at when the process ends: one that waits for a device does not return then.
constexpr Milliseconds kAtExit{1'000};

void settle_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE)
      fail<InvalidArgument>("[ReplicaPool] expected cores from 0 to ", CPU_SETSIZE - 1, ", got ", cpu);
    CPU_SET(static_cast<std::size_t>(cpu), &set);
  }
  const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  if (error != 0) {
    std::string list;
    for (const int cpu : cpus) list += cat(list.empty() ? "" : ", ", cpu);
    fail<InvalidArgument>("[ReplicaPool] expected cores that this process may use, got [", list,
                          "]: ", std::strerror(error));
  }
}

void be_nice(int nice) {
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  errno = 0;
  const int before = getpriority(PRIO_PROCESS, thread);
  if (errno == 0 && setpriority(PRIO_PROCESS, thread, before + nice) == 0) return;
  const int error = errno;
  fail<InvalidArgument>("[ReplicaPool] expected a change of the threads' priority that is allowed, got ", nice, ": ",
                        std::strerror(error));
}

}  // namespace

void ServingPool::name_thread(const std::string& what) const {
  pthread_setname_np(pthread_self(), cat(options_.threads.name.substr(0, 8), "-", what).c_str());
}

void ServingPool::begin(Replica& replica) {
  const ServingThreads& threads = options_.threads;
  const auto index = static_cast<std::size_t>(replica.index);
  name_thread(cat(replica.index));
  if (!threads.cpus.empty()) settle_on(threads.cpus[index % threads.cpus.size()]);
  if (threads.nice != 0) be_nice(threads.nice);
  if (threads.started) threads.started(replica.index);
}

void ServingPool::start() {
  const auto self = shared_from_this();
  if (!clock_.runs())
    clock_.set_wake(this, [weak = std::weak_ptr<ServingPool>(self)] {
      if (const auto pool = weak.lock()) {
        const Lock lock(pool->mutex_);
        pool->next_look_ = Clock::time_point::min();
        pool->wake_all();
      }
    });
  threads_begin();
  std::string refused;
  try {
    const BlockedSignals blocked;
    for (const auto& replica : replicas_) threads_.emplace_back([self, of = replica.get()] { self->work(*of); });
    watcher_ = std::thread([self] { self->watch(); });
    Lock lock(mutex_);
    idle_.wait(lock, [&] {
      return std::all_of(replicas_.begin(), replicas_.end(), [](const auto& replica) { return replica->started; });
    });
    for (const auto& replica : replicas_)
      if (refused.empty()) refused = replica->refused;
  } catch (const std::exception& error) {
    refused = cat("[ReplicaPool] expected ", replicas_.size() + 1, " threads, got: ", error.what());
  }
  if (refused.empty()) return;
  join();
  throw InvalidArgument(refused);
}

void ServingPool::run_chores(const std::function<void(int replica)>& chore, Deadline deadline) {
  check_may_wait();
  struct Progress {
    std::mutex mutex;
    std::condition_variable done;
    std::size_t left = 0;
    std::exception_ptr error;
  };
  const auto progress = std::make_shared<Progress>();
  const auto run = [progress, chore](int replica) {
    std::exception_ptr error;
    try {
      chore(replica);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(progress->mutex);
    if (!progress->error) progress->error = error;
    --progress->left;
    progress->done.notify_all();
  };
  {
    const Lock lock(mutex_);
    check_accepting();
    for (const auto& replica : replicas_) {
      if (replica->stats.state != ReplicaState::serving) continue;
      replica->chores.emplace_back([run, index = replica->index] { run(index); });
      ++progress->left;
    }
    work_.notify_all();
  }
  std::unique_lock lock(progress->mutex);
  const auto over = [&] { return progress->left == 0; };
  if (deadline.never())
    progress->done.wait(lock, over);
  else if (!progress->done.wait_until(lock, deadline.time(), over))
    fail<TimeoutError>("[ReplicaPool] expected all replicas to be done in time, got ", progress->left, " that are not");
  if (progress->error) std::rethrow_exception(progress->error);
}

// What no replica will answer: nobody waits for its end until its deadline.
void ServingPool::end_what_is_left() noexcept {
  try {
    auto error =
        std::make_exception_ptr(Cancelled("[ReplicaPool] the pool ended before a replica had answered the request"));
    Requests left;
    {
      const Lock lock(mutex_);
      for (const auto& replica : replicas_)
        for (const auto& request : replica->running)
          if (request) left.push_back(request);
      const Requests queued = empty_queue();
      left.insert(left.end(), queued.begin(), queued.end());
    }
    finish_all(left, Outcome::cancelled, std::move(error));
  } catch (...) {  // no memory: they end at their deadlines, for those who wait
  }
}

void ServingPool::join() noexcept {
  if (generation_ != fork_generation()) {  // the threads are the parent's, and so is all that they hold
    for (std::thread& thread : threads_) new (std::nothrow) std::thread(std::move(thread));
    new (std::nothrow) std::thread(std::move(watcher_));
    return;
  }
  try {
    close();
  } catch (...) {  // no memory for a list of those that wait: replicas compute them
  }
  clock_.set_wake(this, {});
  const bool exits = process_ends();
  const Deadline deadline = Deadline::after(exits ? std::min(options_.hang_timeout, kAtExit) : options_.hang_timeout);
  Lock lock(mutex_);
  stopping_ = true;
  wake_all();
  // A callback may end the pool: its thread goes on behind it, and then ends by itself.
  const auto is_here = [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); };
  const auto over = [&] {
    return std::all_of(replicas_.begin(), replicas_.end(), [&](const auto& replica) {
      const auto index = static_cast<std::size_t>(replica->index);
      return replica->ended || index >= threads_.size() || is_here(threads_[index]);
    });
  };
  while (!over() && ended_.wait_until(lock, deadline.time()) == std::cv_status::no_timeout) {
  }
  over_ = true;
  wake_all();
  int late = 0;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    if (!replicas_[i]->ended) {
      late += !is_here(threads_[i]);
      threads_[i].detach();
      continue;
    }
    lock.unlock();
    threads_[i].join();
    lock.lock();
  }
  lock.unlock();
  if (is_here(watcher_))
    watcher_.detach();
  else if (watcher_.joinable())
    watcher_.join();
  threads_.clear();
  end_what_is_left();
  if (late == 0 || exits) return;
  try {
    log(LogLevel::warning, cat("[ReplicaPool] ", late, " replicas did not return from their batches in ",
                               options_.hang_timeout.count(), " ms: left to themselves"));
  } catch (...) {  // nothing is to be done about a message that cannot be written
  }
}

}  // namespace lockstep::detail
