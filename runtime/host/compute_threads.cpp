#include "lockstep/runtime/host/compute_threads.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <charconv>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/runtime/cpu_quota.h"
#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/futex.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep {
namespace detail {
namespace {

// How long who has nothing to do looks for it before it sleeps: the next kernel often follows at once, and to wake a
// thread takes as long as a small kernel.
constexpr std::chrono::microseconds kSpin{50};
// How long a helper sleeps before it ends.
constexpr std::chrono::seconds kIdleTime{2};

std::atomic<int> wanted_threads{0};  // by set_threads(); 0: what the options and the environment say
thread_local int alone = 0;

// What may run this process's threads: helpers run there even where the thread that needs them is bound to one core.
struct Cores {
  cpu_set_t set;
  bool known;
  int count;
};
Cores find_cores() {
  Cores cores{};
  cores.known = ::sched_getaffinity(::getpid(), sizeof cores.set, &cores.set) == 0 && CPU_COUNT(&cores.set) > 0;
  cores.count =
      cores.known ? CPU_COUNT(&cores.set) : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (const int quota = cpu_quota(); quota > 0) cores.count = std::min(cores.count, quota);
  // What launchers say to processes that share a machine.
  const std::string_view text = environment("OMP_NUM_THREADS");
  int most = 0;
  std::from_chars(text.data(), text.data() + text.size(), most);
  if (most > 0) cores.count = std::min(cores.count, most);
  return cores;
}
const Cores& cores() {
  static const Cores found = find_cores();
  return found;
}

// What was asked for, 0: nothing.
int threads_by_options() {
  static const int threads = [] {
    if (const int configured = configured_host().threads; configured > 0) return configured;
    const std::string_view text = environment("LOCKSTEP_HOST_THREADS");
    return text.empty() ? 0 : parse_count("LOCKSTEP_HOST_THREADS", text, 1, kMostThreads);
  }();
  return threads;
}
int threads_asked_for() {
  const int wanted = wanted_threads.load(std::memory_order_relaxed);
  return wanted > 0 ? wanted : threads_by_options();
}

int most_threads(int asked) { return asked > 0 ? asked : cores().count; }

struct Job {
  void (*const piece)(void*, std::int64_t);
  void* const context;
  const std::int64_t count;
  const int most;  // helpers
  std::fenv_t environment{};
  std::atomic<std::int64_t> next{0};
  std::atomic<int> helpers{0};  // at it; changed with the pool locked

  std::mutex mutex{};
  std::int64_t failed = std::numeric_limits<std::int64_t>::max();  // the first piece that did
  std::exception_ptr failure{};

  // Takes the next piece; false: there is none.
  bool take() noexcept {
    const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return false;
    try {
      piece(context, i);
    } catch (...) {
      // All before it have been taken, and none behind it need be.
      next.store(count, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (i < failed) failed = i, failure = std::current_exception();
    }
    return true;
  }
  void work() noexcept {
    while (take()) {
    }
  }
  // Helpers that it could use.
  std::int64_t wants() const {
    const std::int64_t left = count - next.load(std::memory_order_relaxed);
    return std::max<std::int64_t>(std::min<std::int64_t>(most - helpers.load(std::memory_order_relaxed), left), 0);
  }
};

// The embedder's thread gets its own back.
class FloatingPoint {
 public:
  explicit FloatingPoint(const std::fenv_t& wanted) noexcept {
    std::fegetenv(&before_);
    std::fesetenv(&wanted);
  }
  FloatingPoint(const FloatingPoint&) = delete;
  FloatingPoint& operator=(const FloatingPoint&) = delete;
  ~FloatingPoint() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

class Pool {
 public:
  const std::uint64_t generation = fork_generation();

  void run(Job& job, bool share_cores) {
    {
      std::lock_guard lock(mutex_);
      ++callers_;
      share_cores_ = share_cores;
      offer(job);
    }
    job.work();
    spin_while([&] { return job.helpers.load(std::memory_order_relaxed) > 0; }, kSpin);
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);
    helped_.wait(lock, [&] { return job.helpers.load(std::memory_order_relaxed) == 0; });
    --callers_;
    if (share_cores_ && !jobs_.empty()) invite_helpers();  // this core is free for the job of another caller
  }

  int threads() {
    std::lock_guard lock(mutex_);
    return threads_;
  }
  std::uint32_t posted() const { return posted_.load(std::memory_order_relaxed); }

 private:
  void offer(Job& job) {
    try {
      jobs_.push_back(&job);
    } catch (const std::bad_alloc&) {
      return;  // nobody helps
    }
    posted_.fetch_add(1, std::memory_order_relaxed);
    invite_helpers();
  }

  void invite_helpers() {
    news_.fetch_add(1, std::memory_order_relaxed);
    std::int64_t wanted = 0;  // who comes may go to any of the jobs
    for (const Job* open : jobs_) wanted += open->wants();
    if (share_cores_) wanted = std::min<std::int64_t>(wanted, cores().count - callers_ - helping_);
    wanted -= looking_ + woken_ + starting_;  // who comes anyway
    for (; wanted > 0 && asleep_ > woken_; --wanted) ++woken_, changed_.notify_one();
    for (; wanted > 0; --wanted) {
      try {
        start_service_thread("lsc", [this] { help(); });
        ++threads_, ++starting_;
      } catch (const std::exception&) {
        return;  // as many as there are
      }
    }
  }

  Job* find_job() {
    if (library_threads.load(std::memory_order_relaxed) == Threads::ended) return nullptr;
    if (share_cores_ && callers_ + helping_ >= cores().count) return nullptr;
    for (Job* job : jobs_)
      if (job->wants() > 0) return job;
    return nullptr;
  }

  void help() noexcept {
    // What kernels keep per thread may belong to another library: it is destroyed before the exit of the process ends
    // that library, or not at all. This is made before all of it, so that it is destroyed after it.
    static thread_local std::optional<ForeignCall> ending;
    ending.reset();
    alone = 1;
    if (cores().known) ::pthread_setaffinity_np(::pthread_self(), sizeof(cpu_set_t), &cores().set);
    std::unique_lock lock(mutex_);
    --starting_;
    for (;;) {
      if (Job* job = find_job()) {
        ++helping_;
        job->helpers.fetch_add(1, std::memory_order_relaxed);
        lock.unlock();
        std::fesetenv(&job->environment);
        job->work();
        lock.lock();
        --helping_;
        if (job->helpers.fetch_sub(1, std::memory_order_relaxed) == 1) helped_.notify_all();
        continue;
      }
      if (callers_ + helping_ + looking_ < cores().count) {
        const std::uint32_t seen = news_.load(std::memory_order_relaxed);
        ++looking_;
        lock.unlock();
        spin_while([&] { return news_.load(std::memory_order_relaxed) == seen; }, kSpin);
        lock.lock();
        --looking_;
        if (news_.load(std::memory_order_relaxed) != seen) continue;
      }
      ++asleep_;
      const bool timely = changed_.wait_for(lock, kIdleTime, [&] { return woken_ > 0; });
      --asleep_;
      if (timely)
        --woken_;
      else
        break;
    }
    --threads_;
    lock.unlock();
    ending.emplace();
    if (!*ending) rest_if_ended();
  }

  std::mutex mutex_;
  std::condition_variable changed_, helped_;
  std::vector<Job*> jobs_;
  std::atomic<std::uint32_t> posted_{0};  // jobs, ever
  std::atomic<std::uint32_t> news_{0};    // changes by which a helper that found nothing to do may find something
  bool share_cores_ = true;               // no more threads than cores, all callers taken together
  int callers_ = 0, helping_ = 0;         // threads that compute
  // Helpers: all; those that begin, that look for work, that sleep; and how many of the last are to wake up.
  int threads_ = 0, starting_ = 0, looking_ = 0, asleep_ = 0, woken_ = 0;
};

// One per process: the threads of a parent are not in its child. Pools are never destroyed, helpers end with the
// process.
Pool& pool() {
  static std::atomic<Pool*> current{nullptr};
  Pool* found = current.load(std::memory_order_acquire);
  while (!found || found->generation != fork_generation()) {
    auto fresh = std::make_unique<Pool>();
    if (current.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) found = fresh.release();
  }
  return *found;
}

}  // namespace

ComputeAlone::ComputeAlone() noexcept { ++alone; }
ComputeAlone::~ComputeAlone() { --alone; }

bool computes_alone() {
  const int asked = threads_asked_for();
  return alone > 0 || (most_threads(asked) < 2 && !(configured_host().parallel_for && asked == 0)) ||
         library_threads.load(std::memory_order_relaxed) == Threads::ended;
}

void run_pieces(std::int64_t count, void (*piece)(void*, std::int64_t), void* context) {
  if (count < 2 || computes_alone()) {
    for (std::int64_t i = 0; i < count; ++i) piece(context, i);
    return;
  }
  const int asked = threads_asked_for(), most = most_threads(asked);
  const ParallelFor& parallel_for = configured_host().parallel_for;
  Job job{.piece = piece, .context = context, .count = count, .most = most - 1};
  std::fegetenv(&job.environment);
  if (parallel_for) {
    parallel_for(count, [&job](std::int64_t) {
      const ComputeAlone here;
      const FloatingPoint like_the_caller(job.environment);
      job.take();
    });
  } else {
    const ComputeAlone here;
    pool().run(job, asked == 0);
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

int compute_threads() { return pool().threads(); }

std::uint32_t divided_calls() { return pool().posted(); }

void check_compute_threads() { threads_by_options(); }

}  // namespace detail

void set_threads(int threads) {
  LOCKSTEP_CHECK(threads >= 0 && threads <= detail::kMostThreads, "[set_threads] expected from 1 to ",
                 detail::kMostThreads, " threads, or 0 for the default, got ", threads);
  detail::wanted_threads.store(threads, std::memory_order_relaxed);
}

int get_threads() {
  detail::device_table();  // from here on the options do not change
  const int asked = detail::threads_asked_for();
  return asked > 0 ? asked : detail::cores().count;
}

}  // namespace lockstep
