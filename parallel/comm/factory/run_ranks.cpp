#include "lockstep/parallel/comm/factory/run_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/recorded/recorded_communicator.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/parallel/comm/store/local_store.h"
#include "lockstep/parallel/comm/thrown_failure.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/mix.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/waiting.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/substitution.h"
#include "lockstep/tensor/context.h"

namespace lockstep::detail {
namespace {

std::vector<Device> devices_of(int ranks, const RunRanksOptions& options) {
  LOCKSTEP_CHECK(ranks > 0, "[run_ranks] expected at least one rank, got ", ranks);
  const auto count = static_cast<std::size_t>(ranks);
  LOCKSTEP_CHECK(options.devices.empty() || options.devices.size() == count,
                 "[run_ranks] expected a device for each of ", ranks, " ranks, got ", options.devices.size());
  if (!options.devices.empty()) return options.devices;
  const std::vector<Device> all = accelerators();
  std::vector<Device> devices;
  for (std::size_t r = 0; r < count; ++r) devices.push_back(all[r % all.size()]);
  return devices;
}

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Groups of threads are for host devices; elsewhere the ranks choose, as ranks of a launcher do.
std::vector<std::unique_ptr<Communicator>> make_group(const std::vector<Device>& devices, Milliseconds timeout) {
  const bool on_hosts =
      std::all_of(devices.begin(), devices.end(), [](Device device) { return device.type() == DeviceType::host; });
  if (is_recorded(devices.front()) && on_hosts) return make_recorded_group(devices, timeout);
  if (on_hosts) return make_thread_group(devices, {.timeout = timeout});
  const auto store = std::make_shared<LocalStore>();
  const int size = static_cast<int>(devices.size());
  std::vector<std::unique_ptr<Communicator>> made(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  const auto failed = [&](std::size_t r) {
    errors[r] = std::current_exception();
    store->give_up(CommError(static_cast<int>(r), "run_ranks", describe(errors[r])));  // it does not come any more
  };
  const auto make = [&](std::size_t r) noexcept {
    try {
      const int rank = static_cast<int>(r);
      made[r] = make_communicator({.store = store,
                                   .rank = {.rank = rank, .size = size, .local_rank = rank, .local_size = size},
                                   .device = devices[r],
                                   .timeout = timeout});
    } catch (...) {
      failed(r);
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(devices.size());
  for (std::size_t r = 1; r < devices.size(); ++r) {
    try {
      threads.emplace_back(make, r);
    } catch (...) {  // the system has no thread left
      failed(r);
    }
  }
  make(0);
  for (std::thread& thread : threads) thread.join();
  // A CommError may follow from what another rank threw.
  std::exception_ptr cause;
  for (const std::exception_ptr& error : errors)
    if (error && (!cause || (is_comm_error(cause) && !is_comm_error(error)))) cause = error;
  if (cause) std::rethrow_exception(cause);
  return made;
}

// Waits for the stream of a rank whose failure is known.
void await_failed(const Stream& stream, Milliseconds timeout) noexcept try {
  LOCKSTEP_EDGE(synchronize(stream, timeout));
} catch (...) {  // what follows from the failure, or a task that does not end
}

}  // namespace

struct RankCall::State {
  struct Entry {
    std::unique_ptr<Communicator> communicator;
    std::exception_ptr error;
    int order = 0;           // among those that threw
    bool of_others = false;  // a CommError, which may follow from what another rank did
    std::uint64_t sequence = 0;
    bool ended = false;
  };
  ThreadContext context;
  std::unique_ptr<Substitution> substitution;  // what the caller's scopes say: they may end before a late rank
  std::uint64_t call_number = 0;
  std::vector<Entry> entries;
  std::vector<std::uint32_t> record_numbers;  // of the ranks' threads, where they are recorded
  Milliseconds timeout{};

  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0, failures = 0;
  bool abandoned = false;

  void failed(Entry& entry, const std::exception_ptr& error);
  [[noreturn]] void give_up(RankCall& call, std::unique_lock<std::mutex>& lock);
  void throw_cause();
};

RankCall::RankCall() : state_(std::make_unique<State>()) {}
RankCall::~RankCall() = default;

void RankCall::run_function(RankCall& call, int rank) {
  State& state = *call.state_;
  State::Entry& entry = state.entries[static_cast<std::size_t>(rank)];
  ThreadContext context = state.context;
  // Depends on the caller's stream and call and on the rank, and on nothing else.
  context.random_stream = mix(mix(context.random_stream, state.call_number), static_cast<std::uint64_t>(rank));
  context.random_counter = 0;
  const ContextScope scope(context);
  const AutocastThread casts;
  const trace::Scope span("rank");
  try {
    Stream stream(entry.communicator->device());
    try {
      LOCKSTEP_EDGE_SCOPE(StreamScope, current, stream);
      call.run(rank, *entry.communicator);
      // What failed on the stream is the rank's failure, and what it returned is there.
      try {
        LOCKSTEP_EDGE(synchronize(stream, state.timeout));
      } catch (const CommError&) {
        if (last_thrown_failure() != entry.communicator.get()) throw;
        await_failed(stream, state.timeout);  // a call has thrown it, and the function has caught it
      }
    } catch (...) {
      state.failed(entry, std::current_exception());
      // What is on its way ends now, and is not somebody else's failure later.
      await_failed(stream, state.timeout);
    }
  } catch (...) {
    state.failed(entry, std::current_exception());
  }
  entry.sequence = thread_context().sequence;
}

void RankCall::State::failed(Entry& entry, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex);
    if (entry.error) return;
    entry.error = error;
    entry.order = failures++;
  }
  entry.of_others = is_comm_error(error);
  entry.communicator->abort(describe(error));
}

void RankCall::run_rank(const std::shared_ptr<RankCall>& call, int rank) noexcept {
  State& state = *call->state_;
  State::Entry& entry = state.entries[static_cast<std::size_t>(rank)];
  Recorder* const recorder = Recorder::active();
  if (recorder) recorder->come(state.record_numbers[static_cast<std::size_t>(rank)]);
  take_over(&state);
  run_function(*call, rank);
  entry.communicator.reset();
  hand_over(&state);
  const std::uint32_t record_number = recorder ? state.record_numbers[static_cast<std::size_t>(rank)] : 0;
  struct Go {  // last: the state may be gone then
    Recorder* const recorder;
    const std::uint32_t number;
    ~Go() {
      if (recorder) recorder->go(number);
    }
  } go{recorder, record_number};
  const std::lock_guard lock(state.mutex);
  if (state.abandoned) {  // nobody asks any more
    call->forget(rank);
    entry.error = nullptr;
  }
  entry.ended = true;
  ++state.ended;
  state.changed.notify_all();
}

// The entries' errors may only die with the call, or here.
void RankCall::State::throw_cause() {
  const Entry* cause = nullptr;
  for (const Entry& entry : entries)
    if (entry.error && (!cause || std::pair(entry.of_others, entry.order) < std::pair(cause->of_others, cause->order)))
      cause = &entry;
  if (!cause) return;
  const int rank = static_cast<int>(cause - entries.data());
  const std::exception_ptr error = cause->error;
  for (Entry& entry : entries) entry.error = nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const CommError& known) {
    // Who is at fault is what the collective has found out.
    std::throw_with_nested(CommError(known.rank, "run_ranks", known.what()));
  } catch (...) {
    std::throw_with_nested(CommError(rank, "run_ranks", describe(error)));
  }
}

void RankCall::State::give_up(RankCall& call, std::unique_lock<std::mutex>& lock) {
  abandoned = true;
  std::string late, threw;
  for (std::size_t r = 0; r < entries.size(); ++r) {
    if (!entries[r].ended) {
      late += cat(late.empty() ? "rank " : ", rank ", r);
      continue;
    }
    if (const std::exception_ptr error = std::exchange(entries[r].error, nullptr))
      threw += cat("; rank ", r, " threw: ", describe(error));
    call.forget(static_cast<int>(r));
  }
  lock.unlock();
  fail<TimeoutError>("[run_ranks] expected every rank to return within ", timeout.count(),
                     " ms after the others, still running: ", late, threw);
}

void run_rank_call(const std::shared_ptr<RankCall>& call, int ranks, const RunRanksOptions& options) {
  const std::vector<Device> devices = devices_of(ranks, options);
  RankCall::State& state = *call->state_;
  ThreadContext& context = thread_context();
  state.call_number = context.random_counter++;
  state.context = context;
  state.timeout = options.timeout;
  if (context.substitution) {
    state.substitution = context.substitution->flattened();
    state.context.substitution = state.substitution.get();
  }
  std::vector<std::unique_ptr<Communicator>> communicators =
      options.make ? options.make(devices, options.timeout) : make_group(devices, options.timeout);
  LOCKSTEP_CHECK(communicators.size() == devices.size(), "[run_ranks] expected ", ranks, " communicators, got ",
                 communicators.size());
  state.entries.resize(communicators.size());
  for (std::size_t r = 0; r < communicators.size(); ++r) state.entries[r].communicator = std::move(communicators[r]);

  if (Recorder* const recorder = Recorder::active())
    for (int r = 0; r < ranks; ++r) state.record_numbers.push_back(recorder->announce(cat("rank-", r)));
  forget_hand_overs(&state);
  hand_over(&state);
  std::vector<std::thread> threads;
  threads.reserve(state.entries.size());
  try {
    for (int r = 0; r < ranks; ++r) threads.emplace_back([call, r] { RankCall::run_rank(call, r); });
  } catch (...) {
    const std::string why = describe(std::current_exception());
    for (std::size_t r = threads.size(); r < state.entries.size(); ++r) {
      state.entries[r].communicator->abort("could not start a thread: " + why);
      state.entries[r].communicator.reset();
      if (Recorder* const recorder = Recorder::active()) recorder->go(state.record_numbers[r]);
    }
    for (std::thread& thread : threads) thread.join();
    throw;
  }

  std::unique_lock lock(state.mutex);
  while (state.ended < ranks) {
    if (state.ended == 0) {
      wait_until(state.changed, lock, Deadline::after(Milliseconds::max()), [&] { return state.ended > 0; });
    } else if (const Deadline deadline = Deadline::after(state.timeout);
               !wait_until(state.changed, lock, deadline, [&, before = state.ended] { return state.ended > before; })) {
      for (std::thread& thread : threads) thread.detach();
      state.give_up(*call, lock);
    }
  }
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
  take_over(&state);
  for (const RankCall::State::Entry& entry : state.entries)
    context.sequence = std::max(context.sequence, entry.sequence);
  state.throw_cause();
}

}  // namespace lockstep::detail
