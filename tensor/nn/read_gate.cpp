#include "lockstep/tensor/nn/read_gate.h"

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/record/waiting.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep {
namespace {

// Of all gates: who has to wait is rare.
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
};
Queue& queue() {
  static Queue* const made = new Queue;
  return *made;
}

thread_local Reading* innermost = nullptr;

}  // namespace

// ---- ReadGate

ReadGate::ReadGate(Of of) : of_(of) {
  forget_hand_overs(&readers_);
  forget_hand_overs(&written_);
}

void ReadGate::enter(bool passing) {
  const std::uint32_t barred = passing ? kWriting : kWriting | kWanted;
  std::uint32_t state = state_.load(std::memory_order_relaxed);
  while (!(state & barred))
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return take_over(&written_);

  Queue& all = queue();
  std::unique_lock lock(all.mutex);
  for (state = state_.load(std::memory_order_relaxed); !(state & barred);)
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return take_over(&written_);
  ++queued_;
  const std::uint64_t turn = turn_;
  const Deadline deadline = Deadline::after(kDefaultTimeout);
  for (int inside = readers();;) {
    bool in_time = true;
    const Deadline patience = Deadline::after(patience_.load(std::memory_order_relaxed));
    LOCKSTEP_EDGE(in_time = detail::wait_until(all.changed, lock, patience, [&] { return turn_ != turn; }));
    if (in_time) break;
    if (deadline.passed()) {
      --queued_;
      throw TimeoutError(
          of_ == Of::mirrors
              ? "[replicate] expected a refresh of replicas to end within 10 minutes; it is still going on"
              : "[load] expected new elements to be in place within 10 minutes; they are still being copied");
    }
    // A writer that is not inside yet waits for readers. Where none of them has left for so long, one of them may be
    // waiting for this thread: a call that has its work done by threads of its own.
    if (!(state_.load(std::memory_order_acquire) & kWriting) && readers() >= inside) {
      --queued_;
      state_.fetch_add(1, std::memory_order_acq_rel);
      break;
    }
    inside = readers();
  }
  take_over(&written_);
}

void ReadGate::leave() noexcept {
  hand_over(&readers_);
  const std::uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & kReaders) != 1 || !(before & kWanted)) return;
  Queue& all = queue();
  const std::lock_guard lock(all.mutex);
  all.changed.notify_all();
}

bool ReadGate::take() {
  std::uint32_t state = state_.load(std::memory_order_relaxed);
  while (!(state & (kReaders | kWriting)))
    if (state_.compare_exchange_weak(state, state | kWriting, std::memory_order_acq_rel)) return true;
  return false;
}

// Under the mutex of all gates, so that nobody queues at those that are given back.
bool ReadGate::take_all(std::span<ReadGate* const> gates) {
  for (std::size_t i = 0; i < gates.size(); ++i) {
    if (gates[i]->take()) continue;
    while (i-- > 0) gates[i]->state_.fetch_and(~kWriting, std::memory_order_acq_rel);
    return false;
  }
  return true;
}

void ReadGate::take_over_from(std::span<ReadGate* const> gates) {
  for (ReadGate* gate : gates) {
    take_over(&gate->readers_);
    take_over(&gate->written_);
  }
}

void ReadGate::admit() {
  if (queued_ == 0) return;
  state_.fetch_add(queued_, std::memory_order_acq_rel);
  queued_ = 0;
  ++turn_;
}

bool ReadGate::close(std::span<ReadGate* const> gates, Deadline deadline) {
  Queue& all = queue();
  std::unique_lock lock(all.mutex);
  for (ReadGate* gate : gates) {
    ++gate->writers_;
    gate->state_.fetch_or(kWanted, std::memory_order_acq_rel);
  }
  const auto all_taken = [&] { return take_all(gates); };
  bool closed = true;
  LOCKSTEP_EDGE(closed = detail::wait_until(all.changed, lock, deadline, all_taken));
  for (ReadGate* gate : gates) {
    if (--gate->writers_ > 0) continue;
    gate->state_.fetch_and(~kWanted, std::memory_order_acq_rel);
    if (!closed && !(gate->state_.load(std::memory_order_acquire) & kWriting)) gate->admit();
  }
  if (!closed) {
    all.changed.notify_all();
    return false;
  }
  take_over_from(gates);
  return true;
}

bool ReadGate::try_close(std::span<ReadGate* const> gates) {
  const std::lock_guard lock(queue().mutex);
  if (!take_all(gates)) return false;
  take_over_from(gates);
  return true;
}

void ReadGate::open(std::span<ReadGate* const> gates) noexcept {
  Queue& all = queue();
  const std::lock_guard lock(all.mutex);
  for (ReadGate* gate : gates) {
    hand_over(&gate->written_);
    gate->state_.fetch_and(~kWriting, std::memory_order_acq_rel);
    gate->admit();
  }
  all.changed.notify_all();
}

void ReadGate::read_on(const Stream& stream) {
  if (stream.synchronous()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [device, event] : written_) LOCKSTEP_EDGE(stream.wait(event));
  if (std::find(readers_.begin(), readers_.end(), &stream.body()) == readers_.end())
    LOCKSTEP_EDGE(readers_.push_back(&stream.body()));
}

void ReadGate::write_on(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  for (detail::StreamBody* reader : readers_) LOCKSTEP_EDGE(stream.wait_for(*reader));
  for (const auto& [device, event] : written_) LOCKSTEP_EDGE(stream.wait(event));
}

void ReadGate::written_on(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const auto& entry) { return entry.first == stream.device(); };
  auto at = std::find_if(written_.begin(), written_.end(), same);
  if (at == written_.end()) at = written_.emplace(written_.end(), stream.device(), Event());
  LOCKSTEP_EDGE(at->second.record(stream));
  // The stream itself has waited for them: later writers wait for it.
  std::erase_if(readers_, [&](const detail::StreamBody* reader) { return reader->device == stream.device(); });
}

// ---- Reading

Reading::Reading(const Held* held) : outer_(innermost), held_(held) { innermost = this; }

Reading::~Reading() {
  innermost = outer_;
  for_each([](const Entry& entry) { entry.gate->leave(); });
}

Reading* Reading::current() { return innermost; }

template <class F>
void Reading::for_each(F&& f) {
  for (std::size_t i = 0; i < std::min(count_, first_.size()); ++i) f(first_[i]);
  for (Entry& entry : more_)
    if (entry.gate) f(entry);
}

namespace {

// more_ is a hash table with open addressing, for calls of models whose parts were used, or filled, one by one before.
// Here the gate is, or would be.
template <class Entry>
Entry& place_in(std::vector<Entry>& table, const ReadGate* gate) {
  std::uint64_t at = (std::uint64_t{reinterpret_cast<std::uintptr_t>(gate)} * 0x9e3779b97f4a7c15u) >> 32;
  while (table[at & (table.size() - 1)].gate && table[at & (table.size() - 1)].gate.get() != gate) ++at;
  return table[at & (table.size() - 1)];
}

// Makes room for one more beside `used`, so that half of the places stay empty.
template <class Entry>
void make_room(std::vector<Entry>& table, std::size_t used) {
  if (2 * (used + 1) <= table.size()) return;
  std::vector<Entry> larger(std::max<std::size_t>(8, 2 * table.size()));
  for (Entry& entry : table)
    if (entry.gate) place_in(larger, entry.gate.get()) = std::move(entry);
  table = std::move(larger);
}

}  // namespace

Reading::Entry* Reading::find(const ReadGate& gate) {
  for (std::size_t i = 0; i < std::min(count_, first_.size()); ++i)
    if (first_[i].gate.get() == &gate) return &first_[i];
  if (more_.empty()) return nullptr;
  Entry& place = place_in(more_, &gate);
  return place.gate ? &place : nullptr;
}

bool Reading::holds(const ReadGate& gate) {
  for (Reading* scope = innermost; scope; scope = scope->outer_) {
    if (scope->find(gate)) return true;
    if (!scope->held_) continue;
    for (const std::shared_ptr<ReadGate>& held : *scope->held_)
      if (held.get() == &gate) return true;
  }
  return false;
}

Reading::Entry& Reading::entry(const std::shared_ptr<ReadGate>& gate) {
  for (Reading* scope = this; scope; scope = scope->outer_)
    if (Entry* found = scope->find(*gate)) return *found;
  if (count_ >= first_.size())
    make_room(more_, count_ - first_.size());  // before it enters, so that nothing fails after
  // Who holds one gate must not queue for another: whoever waits for that one may wait for this reader. For mirrors
  // that is so among mirrors alone, and replicas must queue, since their device's thread is never without one. On a
  // device's thread homes are not queued for: a call that is inside may wait for the thread.
  bool passing = gate->of() == ReadGate::Of::home && DeviceThread::current();
  for (Reading* scope = innermost; scope && !passing; scope = scope->outer_) {
    if (gate->of() == ReadGate::Of::home)
      passing = scope->count_ > 0 || (scope->held_ && !scope->held_->empty());
    else
      passing = scope->has_mirrors_;
  }
  gate->enter(passing);
  has_mirrors_ = has_mirrors_ || gate->of() == ReadGate::Of::mirrors;
  Entry& entered = count_ < first_.size() ? first_[count_] : place_in(more_, gate.get());
  ++count_;
  return entered = {gate, nullptr};
}

void Reading::read(const ParameterBody& body, const Stream& stream) {
  const std::shared_ptr<ReadGate>* gate = body.gate();
  if (!gate) return;
  Entry& held = entry(*gate);
  if (held.stream == &stream.body()) return;
  (*gate)->read_on(stream);
  held.stream = &stream.body();
}

Reading::Held Reading::share() {
  Held all;
  std::unordered_set<const ReadGate*> known;
  const auto add = [&](const std::shared_ptr<ReadGate>& gate) {
    if (gate->of() != ReadGate::Of::home || !known.insert(gate.get()).second) return;
    all.push_back(gate);
    try {
      gate->enter(true);  // at once: no writer is inside while this thread is
    } catch (...) {
      all.pop_back();
      throw;
    }
  };
  try {
    for (Reading* scope = innermost; scope; scope = scope->outer_) {
      scope->for_each([&](const Entry& entry) { add(entry.gate); });
      if (scope->held_)
        for (const std::shared_ptr<ReadGate>& gate : *scope->held_) add(gate);
    }
  } catch (...) {
    leave(all);
    throw;
  }
  return all;
}

void Reading::leave(Held& held) noexcept {
  for (const std::shared_ptr<ReadGate>& gate : held) gate->leave();
  held.clear();
}

namespace detail {

void share_gate(std::span<ParameterBody* const> bodies) {
  const auto has_none = [](const ParameterBody* body) { return !body->gate(); };
  if (std::none_of(bodies.begin(), bodies.end(), has_none)) return;
  static std::mutex& sharing = *new std::mutex;
  const std::lock_guard lock(sharing);
  const auto gate = std::make_shared<ReadGate>();
  for (ParameterBody* body : bodies)
    if (has_none(body)) body->set_gate(gate);
}

Writing::Writing(const char* op, std::span<ParameterBody* const> bodies, std::span<const Device> devices,
                 Deadline deadline) {
  share_gate(bodies);
  std::unordered_set<const ReadGate*> known;
  for (ParameterBody* body : bodies) {
    const std::shared_ptr<ReadGate>& gate = *body->gate();
    if (!known.insert(gate.get()).second) continue;
    if (Reading::holds(*gate))
      throw Error(cat("[", op,
                      "] expected a call from outside of the module's calls, got one from inside a call that "
                      "reads ",
                      body->describe()));
    owners_.push_back(gate);
    gates_.push_back(gate.get());
  }
  for (const Device device : devices) {
    const Stream stream = current_stream(device);
    if (!stream.synchronous() && std::find(streams_.begin(), streams_.end(), &stream.body()) == streams_.end())
      streams_.push_back(&stream.body());
  }
  const bool on_device_thread = DeviceThread::current() != nullptr;
  const bool closed = ReadGate::close(gates_, on_device_thread ? Deadline::after(Milliseconds(0)) : deadline);
  if (!closed && on_device_thread)
    throw Error(cat("[", op, "] expected a call from outside of replicas, got one from the thread of ",
                    DeviceThread::current()->device(), " while calls read ", bodies.front()->describe()));
  if (!closed) {
    int readers = 0;
    for (const ReadGate* gate : gates_) readers += gate->readers();
    throw TimeoutError(cat("[", op, "] expected the calls that read ", bodies.front()->describe(),
                           " to end before new elements are put in place; at the deadline ", readers,
                           " were still going on"));
  }
  try {
    for (detail::StreamBody* stream : streams_)
      for (ReadGate* gate : gates_) gate->write_on(*stream);
  } catch (...) {
    ReadGate::open(gates_);
    throw;
  }
}

Writing::~Writing() {
  try {
    for (detail::StreamBody* stream : streams_)
      for (ReadGate* gate : gates_) gate->written_on(*stream);
  } catch (...) {
    // What the stream cannot mark, its next user is told of.
  }
  ReadGate::open(gates_);
}

}  // namespace detail

}  // namespace lockstep
