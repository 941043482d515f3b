#include "lockstep/models/generation/generator.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "lockstep/models/generation/generation_state.h"
#include "lockstep/parallel/serving/serving_error.h"
#include "lockstep/runtime/check_function.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/library_threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/service_thread.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {
namespace {

using State = std::shared_ptr<detail::GenerationState>;
using Lock = std::unique_lock<std::mutex>;

// For the call of the model that is being made when the generator goes, or the process ends.
constexpr Milliseconds kLastCall{60'000}, kAtExit{1'000};

struct Update {
  std::function<void()> change;
  bool begun = false, done = false;
  std::exception_ptr error;
};

// Or what making it threw.
template <class E, class... Parts>
std::exception_ptr exception_of(const Parts&... parts) noexcept {
  try {
    return std::make_exception_ptr(E(cat(parts...)));
  } catch (...) {
    return std::current_exception();
  }
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

struct Generator::Body {
  Body(std::shared_ptr<const LanguageModel> of, const GeneratorOptions& with)
      : model(std::move(of)), options(with), batch([this] {
          // The memory is the thread's, which works on the default stream.
          LOCKSTEP_EDGE_SCOPE(StreamScope, scope, default_stream(model->device()));
          return ContinuousBatch(*model, options.batch);
        }()) {}

  const std::shared_ptr<const LanguageModel> model;
  const GeneratorOptions options;
  const std::uint64_t generation = detail::fork_generation();
  std::thread thread;

  ContinuousBatch batch;  // the thread's

  mutable std::mutex mutex;
  std::condition_variable work, room, changed;
  std::deque<State> queue;
  std::map<std::int64_t, State> running;  // by their numbers in the batch
  std::deque<std::shared_ptr<Update>> updates;
  bool accepting = true, stopping = false, over = false;
  GeneratorStats stats;
  ContinuousBatchStats batch_stats;

  struct End {
    State state;
    FinishReason finish;
    std::exception_ptr error;
  };
  void count(std::uint64_t GeneratorStats::*outcome) { ++(stats.*outcome); }
  static void publish(std::vector<End>& ends);
  void run() noexcept;
  void serve(Lock& lock);
  void look(std::vector<End>& ends);
  void join_batch(std::vector<End>& ends);
  void change(Lock& lock);
  void step(Lock& lock);
  void give(Lock& lock, std::vector<GenerationEvent> events, Clock::duration took);
  void fail_running(Lock& lock, std::exception_ptr error);
  void end_all(std::vector<End>& ends, const char* why);
  State make_room(Lock& lock, Clock::time_point deadline);
};

// Without the generator's mutex: who hears of the end may call the generator.
void Generator::Body::publish(std::vector<End>& ends) {
  for (End& end : ends) end.state->end(end.finish, std::move(end.error));
  ends.clear();
}

void Generator::Body::run() noexcept {
  detail::this_is_a_service_thread();
  Lock lock(mutex);
  while (!stopping || !queue.empty() || !running.empty()) {
    try {
      serve(lock);
    } catch (...) {  // no memory for what a turn needs here
      if (!lock) lock.lock();
      work.wait_for(lock, Milliseconds(1));
    }
  }
  over = true;
  changed.notify_all();
}

void Generator::Body::serve(Lock& lock) {
  std::vector<End> ends;
  if (stopping) end_all(ends, "[Generator] the generator ended before the text did");
  look(ends);
  if (!updates.empty() && running.empty() && ends.empty()) return change(lock);
  if (updates.empty()) join_batch(ends);
  batch_stats = batch.stats();
  if (queue.empty() && running.empty()) changed.notify_all();
  if (!ends.empty()) {
    lock.unlock();
    publish(ends);
    lock.lock();
    return;
  }
  if (!running.empty()) return step(lock);
  work.wait(lock, [&] { return stopping || !queue.empty() || !updates.empty(); });
}

// Ends what was cancelled and what is late.
void Generator::Body::look(std::vector<End>& ends) {
  const Clock::time_point now = Clock::now();
  const auto ended = [&](const State& state) {
    if (state->cancelled) {
      count(&GeneratorStats::cancelled);
      ends.push_back({state, FinishReason::failed,
                      exception_of<Cancelled>("[Generator] the text was cancelled by its submitter")});
      return true;
    }
    if (state->deadline > now) return false;
    count(&GeneratorStats::late);
    ends.push_back({state, FinishReason::failed,
                    exception_of<TimeoutError>("[Generator] expected the whole text within ", state->timeout.count(),
                                               " ms, got a part of it")});
    return true;
  };
  ends.reserve(queue.size() + running.size());
  if (std::erase_if(queue, ended) > 0) room.notify_all();
  std::erase_if(running, [&](const auto& entry) {
    if (!ended(entry.second)) return false;
    batch.cancel(entry.first);
    return true;
  });
}

void Generator::Body::end_all(std::vector<End>& ends, const char* why) {
  ends.reserve(queue.size() + running.size());
  const auto end = [&](const State& state) {
    count(&GeneratorStats::cancelled);
    ends.push_back({state, FinishReason::failed, exception_of<Cancelled>(why)});
  };
  for (const State& state : queue) end(state);
  queue.clear();
  for (const auto& [number, state] : running) {
    batch.cancel(number);
    end(state);
  }
  running.clear();
  room.notify_all();
}

void Generator::Body::join_batch(std::vector<End>& ends) {
  while (!queue.empty() && static_cast<std::int64_t>(running.size()) < options.batch.max_sequences) {
    const State state = std::move(queue.front());
    queue.pop_front();
    room.notify_all();
    try {
      const std::int64_t number = batch.add(std::move(state->prompt), state->options);
      running.emplace(number, state);
    } catch (...) {
      count(&GeneratorStats::failed);
      ends.push_back({state, FinishReason::failed, std::current_exception()});
    }
  }
}

void Generator::Body::change(Lock& lock) {
  const std::shared_ptr<Update> update = std::move(updates.front());
  updates.pop_front();
  update->begun = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    update->change();
  } catch (...) {  // perhaps behind weights that it has changed
    error = std::current_exception();
  }
  batch.forget_prefixes();
  lock.lock();
  stats.updates += !error;
  update->error = std::move(error);
  update->done = true;
  changed.notify_all();
}

void Generator::Body::step(Lock& lock) {
  lock.unlock();
  const Clock::time_point began = Clock::now();
  std::vector<GenerationEvent> events;
  std::exception_ptr error;
  try {
    events = batch.step();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  // Errors go to those who fetch them, and are not held here when they hear of them.
  if (error) return fail_running(lock, std::move(error));
  give(lock, std::move(events), Clock::now() - began);
}

void Generator::Body::give(Lock& lock, std::vector<GenerationEvent> events, Clock::duration took) {
  const Clock::time_point now = Clock::now();
  stats.step_seconds.add(seconds(took));
  std::vector<State> states;
  std::vector<End> ends;
  states.reserve(events.size());
  ends.reserve(events.size());
  for (const GenerationEvent& event : events) {
    const State& state = states.emplace_back(running.at(event.request));
    if (event.token >= 0) {
      ++stats.tokens;
      const bool first = state->last_token == Clock::time_point{};
      (first ? stats.first_token_seconds : stats.token_seconds)
          .add(seconds(now - (first ? state->submitted : state->last_token)));
      state->last_token = now;
    }
  }
  batch_stats = batch.stats();
  lock.unlock();
  for (std::size_t i = 0; i < events.size(); ++i) {
    GenerationEvent& event = events[i];
    const State& state = states[i];
    std::exception_ptr error = std::move(event.error);
    if (event.token >= 0) {
      state->give(event.token, std::move(event.logprobs));
      try {
        if (state->on_token && !state->on_token(event.token)) state->cancelled = true;
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (!event.finish && !error) continue;
    lock.lock();
    count(error ? &GeneratorStats::failed : &GeneratorStats::finished);
    if (!event.finish) batch.cancel(event.request);
    running.erase(event.request);
    lock.unlock();
    ends.push_back({state, error ? FinishReason::failed : *event.finish, std::move(error)});
  }
  publish(ends);
  states.clear();
  lock.lock();
}

// Those whose tokens the call was to compute; behind a device that failed there is nobody to compute the others.
void Generator::Body::fail_running(Lock& lock, std::exception_ptr error) {
  std::vector<End> ends;
  const auto lost = [&] {
    try {
      std::rethrow_exception(error);
    } catch (const DeviceError&) {
      return true;
    } catch (...) {
      return false;
    }
  }();
  ends.reserve(running.size() + queue.size());
  for (const auto& [number, state] : running) {
    batch.cancel(number);
    count(&GeneratorStats::failed);
    ends.push_back({state, FinishReason::failed, error});
  }
  running.clear();
  if (lost) {
    accepting = false;
    for (const State& state : queue) {
      count(&GeneratorStats::dropped);
      ends.push_back({state, FinishReason::failed, error});
    }
    queue.clear();
    room.notify_all();
  }
  error = nullptr;
  lock.unlock();
  publish(ends);
  lock.lock();
}

// What goes in the place of the request that comes, or nothing.
State Generator::Body::make_room(Lock& lock, Clock::time_point deadline) {
  const auto check = [&] {
    if (accepting) return;
    ++stats.refused;
    throw Refused("[Generator] expected a generator that takes requests, got one that was closed or lost its device");
  };
  check();
  while (queue.size() >= options.max_queued) {
    if (options.when_full == WhenFull::drop_oldest && !queue.empty()) {
      State oldest = std::move(queue.front());
      queue.pop_front();
      count(&GeneratorStats::dropped);
      return oldest;
    }
    // Waiting in the generator's own thread, as a callback would, keeps the room from coming.
    if (options.when_full != WhenFull::wait || thread.get_id() == std::this_thread::get_id()) {
      ++stats.refused;
      throw Refused(
          cat("[Generator] expected fewer than ", options.max_queued, " requests that wait, got ", queue.size()));
    }
    ++stats.waiting;
    if (deadline == Clock::time_point::max())
      room.wait(lock);
    else
      room.wait_until(lock, deadline);
    --stats.waiting;
    check();
    if (queue.size() >= options.max_queued && Clock::now() >= deadline) {
      ++stats.refused;
      throw TimeoutError(cat("[Generator] expected room among ", options.max_queued,
                             " requests that wait before the deadline, got none"));
    }
  }
  return nullptr;
}

Generator::Generator(std::shared_ptr<const LanguageModel> model, const GeneratorOptions& options) {
  LOCKSTEP_CHECK(model != nullptr, "[Generator] expected a model, got null");
  LOCKSTEP_CHECK(options.timeout.count() > 0, "[Generator] expected a timeout above 0, got ", options.timeout.count(),
                 " ms");
  LOCKSTEP_CHECK(options.max_queued > 0, "[Generator] expected room for at least 1 request, got ", options.max_queued);
  body_ = std::make_shared<Body>(std::move(model), options);
  detail::threads_begin();
  const detail::BlockedSignals blocked;
  body_->thread = std::thread([body = body_] { body->run(); });
  pthread_setname_np(body_->thread.native_handle(), options.thread_name.substr(0, 15).c_str());
}

Generator::~Generator() {
  Body& body = *body_;
  if (body.generation != detail::fork_generation()) {  // the thread is the parent's, and so is all that it holds
    new (std::nothrow) std::thread(std::move(body.thread));
    new (std::nothrow) std::shared_ptr<Body>(body_);
    return;
  }
  Lock lock(body.mutex);
  body.accepting = false;
  body.stopping = true;
  body.work.notify_all();
  body.room.notify_all();
  const bool own = body.thread.get_id() == std::this_thread::get_id(), exits = detail::process_ends();
  const Clock::time_point longest = Clock::now() + (exits ? kAtExit : kLastCall);
  if (!own && body.changed.wait_until(lock, longest, [&] { return body.over; })) {
    lock.unlock();
    body.thread.join();
    return;
  }
  body.thread.detach();
  if (own || exits) return;
  try {
    log(LogLevel::warning, "[Generator] a call of the model did not return: left to itself");
  } catch (...) {  // nothing is to be done about a message that cannot be written
  }
}

Generation Generator::submit(std::vector<std::int64_t> prompt, GenerateOptions options, SubmitOptions how) {
  Body& body = *body_;
  detail::check_generation("Generator", body.generation);
  LOCKSTEP_CHECK(how.timeout.count() >= 0, "[Generator] expected a timeout of 0 or more, got ", how.timeout.count(),
                 " ms");
  body.batch.check(prompt, options);
  const auto state = std::make_shared<detail::GenerationState>();
  state->prompt = std::move(prompt);
  state->options = std::move(options);
  state->on_token = std::move(how.on_token);
  state->timeout = how.timeout.count() > 0 ? how.timeout : body.options.timeout;
  state->submitted = Clock::now();
  const Deadline deadline = Deadline::after(state->timeout);
  state->deadline = deadline.never() ? Clock::time_point::max() : deadline.time();
  State dropped;
  {
    Lock lock(body.mutex);
    dropped = body.make_room(lock, state->deadline);
    body.queue.push_back(state);
    ++body.stats.submitted;
    body.work.notify_all();
  }
  if (dropped)
    dropped->end(FinishReason::failed, exception_of<Refused>("[Generator] the request was dropped for a later one"));
  return Generation(state);
}

void Generator::close() {
  detail::check_generation("Generator", body_->generation);
  std::vector<Body::End> ends;
  {
    const Lock lock(body_->mutex);
    body_->accepting = false;
    ends.reserve(body_->queue.size());
    for (const State& state : body_->queue) {
      body_->count(&GeneratorStats::cancelled);
      ends.push_back({state, FinishReason::failed,
                      exception_of<Cancelled>("[Generator] the generator was closed before the text began")});
    }
    body_->queue.clear();
    body_->room.notify_all();
    body_->work.notify_all();
  }
  Body::publish(ends);
}

bool Generator::drain(Milliseconds timeout) {
  Body& body = *body_;
  detail::check_generation("Generator", body.generation);
  if (body.thread.get_id() == std::this_thread::get_id())
    throw Error("[Generator] expected another thread than the generator's to wait for it, got that one");
  Lock lock(body.mutex);
  body.accepting = false;
  body.room.notify_all();
  const auto idle = [&] { return body.over || (body.queue.empty() && body.running.empty()); };
  const Deadline deadline = Deadline::after(timeout);
  if (!deadline.never()) return body.changed.wait_until(lock, deadline.time(), idle);
  body.changed.wait(lock, idle);
  return true;
}

void Generator::update(const std::function<void()>& change, Milliseconds timeout) {
  Body& body = *body_;
  detail::check_generation("Generator", body.generation);
  detail::check_function("Generator::update", change);
  if (body.thread.get_id() == std::this_thread::get_id())
    throw Error("[Generator] expected another thread than the generator's to wait for it, got that one");
  const auto update = std::make_shared<Update>();
  update->change = change;
  Lock lock(body.mutex);
  body.updates.push_back(update);
  body.work.notify_all();
  const Deadline deadline = Deadline::after(timeout);
  const auto begun = [&] { return update->begun || body.over; };
  if (deadline.never())
    body.changed.wait(lock, begun);
  else
    body.changed.wait_until(lock, deadline.time(), begun);
  if (!update->begun) {
    std::erase(body.updates, update);
    throw TimeoutError(cat("[Generator] expected the texts that are computed to end within ", timeout.count(),
                           " ms, got ", body.running.size(), " that have not"));
  }
  body.changed.wait(lock, [&] { return update->done; });
  if (auto error = std::exchange(update->error, nullptr)) std::rethrow_exception(std::move(error));
}

GeneratorStats Generator::stats() const {
  const Lock lock(body_->mutex);
  GeneratorStats stats = body_->stats;
  stats.queued = body_->queue.size();
  stats.running = body_->running.size();
  stats.waiting_updates = body_->updates.size();
  stats.batch = body_->batch_stats;
  return stats;
}

}  // namespace lockstep
