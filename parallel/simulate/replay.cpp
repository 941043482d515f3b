#include "lockstep/parallel/simulate/replay.h"

#include <algorithm>
#include <cmath>

#include "lockstep/parallel/simulate/collective_cost.h"
#include "lockstep/runtime/error.h"

namespace lockstep::simulate {
namespace {

// Every host has the same links; those of host h follow those of host h - 1.
std::vector<std::int64_t> rates_of(const Machine& machine) {
  std::vector<std::int64_t> rates;
  for (int host = 0; host < machine.network.hosts; ++host)
    for (const Link& link : machine.links)
      rates.push_back(std::max<std::int64_t>(1, std::llround(link.bytes_per_second * link.copy_engine_efficiency)));
  return rates;
}

}  // namespace

Nanoseconds to_nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

Replay::Replay(const Recording& recording, const Machine& machine, const Options& options)
    : recording_(recording),
      machine_(machine),
      options_(options),
      flows_(rates_of(machine), options.keep_rates),
      meetings_(recording) {
  check();
  for (std::size_t t = 0; t < recording.threads.size(); ++t) {
    first_.push_back(static_cast<int>(entries_.size()));
    for (const Entry& each : recording.threads[t].entries) {
      entries_.push_back(&each);
      thread_of_.push_back(static_cast<int>(t));
    }
  }
  const std::size_t count = entries_.size();
  steps_.resize(count);
  issued_.resize(count);
  issue_waiters_.resize(count);
  done_waiters_.resize(count);
  stream_waiters_.resize(count);
  threads_.resize(recording.threads.size());
  streams_.resize(recording.streams.size());
  devices_.resize(static_cast<std::size_t>(recording.device_count()));
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const GpuType& type = machine.type_of(static_cast<int>(d) % machine.device_count());
    devices_[d].engines[0].servers = type.h2d_engines;
    devices_[d].engines[1].servers = type.d2h_engines;
    devices_[d].engines[2].servers = type.peer_engines;
  }
}

void Replay::check() const {
  const int count = recording_.device_count();
  LOCKSTEP_CHECK(count <= machine_.rank_count(), "[simulate] expected a recording for the ", machine_.rank_count(),
                 " devices of ", machine_.name, ", got one of ", count, " (", recording_.file, ")");
  for (const Copy& copy : recording_.copies)
    LOCKSTEP_CHECK(copy.source == kHostMemory || copy.destination == kHostMemory ||
                       copy.source / machine_.device_count() == copy.destination / machine_.device_count(),
                   "[simulate] expected copies within one host of ", machine_.name, " (", machine_.device_count(),
                   " devices), got one from device ", copy.source, " to ", copy.destination);
  if (options_.ranks == 0) return;
  for (const Collective& it : recording_.collectives)
    LOCKSTEP_CHECK(it.rank == recording_.collectives.front().rank,
                   "[simulate] expected a recording of one rank where another number of ranks is asked for, got ranks ",
                   recording_.collectives.front().rank, " and ", it.rank, " in ", recording_.file);
}

void Replay::at(Nanoseconds time, What what, int which, int version) {
  events_.push({time, events_made_++, what, which, version});
}

Result Replay::run() {
  for (std::size_t t = 0; t < threads_.size(); ++t) at(0, What::thread_on, static_cast<int>(t));
  for (;;) {
    // What happens now comes before rates are computed anew.
    const Nanoseconds next = events_.empty() ? kNever : std::get<0>(events_.top());
    const Nanoseconds flows = flows_.unsettled() && next == now_ ? kNever : flows_.next_end();
    if (next == kNever && flows == kNever) break;
    now_ = std::min(next, flows);
    if (flows <= next) {
      for (const int e : flows_.advance(now_)) end_flow(e);
      continue;
    }
    const Event event = events_.top();
    events_.pop();
    handle(event);
  }
  const auto waits = [](const Stream& stream) { return !stream.work.empty(); };
  bool stuck = std::any_of(streams_.begin(), streams_.end(), waits);
  for (std::size_t t = 0; t < threads_.size(); ++t)
    stuck = stuck || threads_[t].next < recording_.threads[t].entries.size();
  if (stuck) fail_deadlock();
  Result result;
  read_off(result);
  return result;
}

void Replay::handle(const Event& event) {
  const auto [time, number, what, which, version] = event;
  switch (what) {
    case What::call_done:
      return call_done(which);
    case What::thread_on:
      return go_on(which);
    case What::stream_on:
      return advance(which);
    case What::kernel_done:
      if (devices_[static_cast<std::size_t>(which)].version == version)
        finish(devices_[static_cast<std::size_t>(which)].kernel);
      return;
    case What::flow_begins: {
      const Route& way = route(which);
      const Copy& copy = recording_.copies[static_cast<std::size_t>(entry(which).detail)];
      std::vector<int> path = way.path;
      const int device = copy.source == kHostMemory ? copy.destination : copy.source;
      const int host = std::max(device, 0) / machine_.device_count();
      for (int& link : path) link += host * static_cast<int>(machine_.links.size());
      return flows_.begin(which, path, copy.bytes, now_);
    }
    case What::copy_done:
      return end_copy(which);
    case What::work_done:
      return finish(which);
    case What::meeting_done:
      const std::vector<int> members = meetings_.at(which).arrived;
      for (const int e : members) {
        --devices_[static_cast<std::size_t>(device_of(e))].collectives;
        set_rate(device_of(e));
      }
      for (const int e : members) finish(e);
      return;
  }
}

// ---- Threads ------------------------------------------------------------------------------------

Nanoseconds Replay::cost(const Entry& it) const {
  const HostCosts& host = machine_.host;
  double seconds = 0;
  switch (it.kind) {
    case Kind::kernel:
      seconds = options_.framework ? host.framework_kernel : host.kernel;
      break;
    case Kind::copy:
      seconds = host.copy;
      break;
    case Kind::fill:
      seconds = host.fill;
      break;
    case Kind::record:
      seconds = host.record;
      break;
    case Kind::wait:
    case Kind::host_wait:  // for what is done already
      seconds = host.wait;
      break;
    case Kind::collective:
      seconds = host.collective;
      break;
    case Kind::task:
      seconds = host.task;
      break;
    case Kind::item:
      seconds = host.item;
      break;
    case Kind::call: {
      const auto known = host.calls.find(it.name);
      seconds = known == host.calls.end() ? host.other_call : known->second;
      break;
    }
    case Kind::mark:
      seconds = options_.framework && it.name == "step" ? host.framework_step : 0;
      break;
    case Kind::after:
    case Kind::point:
      break;
  }
  return to_nanoseconds(seconds * host.factor);
}

void Replay::go_on(int t) {
  Thread& thread = threads_[static_cast<std::size_t>(t)];
  const std::vector<Entry>& entries = recording_.threads[static_cast<std::size_t>(t)].entries;
  if (thread.next == entries.size()) return;
  const int e = first_[static_cast<std::size_t>(t)] + static_cast<int>(thread.next);
  const Entry& it = entry(e);
  Moment begin = thread.free;
  Nanoseconds takes = cost(it);
  if (it.kind == Kind::after || it.kind == Kind::wait) {  // who waits for an event waits until there is one
    const int other = number(it.other);
    if (issued_[static_cast<std::size_t>(other)] == 0) {
      issue_waiters_[static_cast<std::size_t>(other)].push_back(t);
      return;
    }
    begin.delay({step(other).call_end, call_node(other)});
  } else if (it.kind == Kind::host_wait) {
    const int other = number(it.other);
    const Nanoseconds done = step(other).work_end;
    if (done == kNever) {
      done_waiters_[static_cast<std::size_t>(other)].push_back(t);
      return;
    }
    const Nanoseconds seen = done + to_nanoseconds(machine_.edges.host);
    if (seen > begin.time) {
      takes = to_nanoseconds(machine_.host.synchronize * machine_.host.factor);
      begin = {seen, work_node(other)};
    }
  }
  const bool locked = recording_.threads[static_cast<std::size_t>(t)].one_call_at_a_time && takes > 0;
  if (locked) begin.delay(lock_);
  Step& made = step(e);
  made.call_begin = begin.time;
  made.call_end = begin.time + takes;
  made.call_cause = begin.node;
  if (locked) lock_ = {made.call_end, call_node(e)};
  at(made.call_end, What::call_done, t);
}

void Replay::call_done(int t) {
  Thread& thread = threads_[static_cast<std::size_t>(t)];
  const int e = first_[static_cast<std::size_t>(t)] + static_cast<int>(thread.next++);
  const Entry& it = entry(e);
  thread.free = {now_, call_node(e)};
  issued_[static_cast<std::size_t>(e)] = 1;
  if (it.kind == Kind::mark && it.name == "step") marks_.emplace_back(e, issue_order_.size());
  if (it.kind == Kind::collective) meetings_.issue(e, it);
  issue_order_.push_back(e);
  if (it.stream >= 0) {
    stream_of(e).work.push_back(e);
    advance(it.stream);
  }
  for (const int waiter : issue_waiters_[static_cast<std::size_t>(e)]) at(now_, What::thread_on, waiter);
  go_on(t);
}

// ---- Streams ------------------------------------------------------------------------------------

Replay::Moment Replay::ready(const Stream& stream, int e) const {
  const Kind kind = entry(e).kind;
  Moment moment = stream.free;
  const bool kernel = kind == Kind::kernel || kind == Kind::fill;
  if (kernel && stream.after_kernel)
    moment.time += to_nanoseconds(machine_.type_of(device_of(e) % machine_.device_count()).kernel_gap);
  moment.delay(stream.not_before);
  const bool starts = kind != Kind::record;
  moment.delay({steps_[static_cast<std::size_t>(e)].call_end + (starts ? to_nanoseconds(machine_.edges.start) : 0),
                call_node(e)});
  return moment;
}

void Replay::advance(int s) {
  Stream& stream = streams_[static_cast<std::size_t>(s)];
  while (!stream.busy && !stream.blocked && !stream.work.empty()) {
    const int e = stream.work.front();
    const Entry& it = entry(e);
    if (it.kind == Kind::wait) {
      const int other = number(it.other);
      const Step& marked = step(other);
      if (marked.work_end == kNever) {
        stream.blocked = true;
        stream_waiters_[static_cast<std::size_t>(other)].push_back(s);
        return;
      }
      const bool same = device_of(other) == device_of(e);
      const double latency = entry(other).stream == s ? 0
                             : same                   ? machine_.edges.same_device
                                                      : machine_.edges.cross_device;
      stream.not_before.delay({marked.work_end + to_nanoseconds(latency), work_node(other)});
      stream.work.pop_front();
      continue;
    }
    const Moment moment = ready(stream, e);
    if (moment.time > now_) {
      if (stream.asked != moment.time) at(stream.asked = moment.time, What::stream_on, s);
      return;
    }
    stream.busy = true;
    begin(e, moment);
  }
}

void Replay::begin(int e, const Moment& moment) {
  Step& made = step(e);
  made.work_begin = now_;
  made.work_cause = moment.node;
  const Entry& it = entry(e);
  Device& device = devices_[static_cast<std::size_t>(device_of(e))];
  switch (it.kind) {
    case Kind::kernel:
    case Kind::fill:
      return serve(device.kernels, e, &Replay::start_kernel);
    case Kind::copy:
      if (route(e).kind == RouteKind::local) return serve(device.kernels, e, &Replay::start_kernel);
      return serve(*engine(e, false), e, &Replay::take_second_engine);
    case Kind::collective: {
      if (!meetings_.arrive(e)) return;
      const Meetings::Meeting& meeting = meetings_.of(e);
      const Collective& collective = *meeting.first;
      const int ranks = options_.ranks > 0 ? options_.ranks : collective.size;
      const double seconds = collective_seconds(machine_, collective.op, static_cast<double>(collective.bytes), ranks);
      for (const int member : meeting.arrived) {
        step(member).work_begin = now_;
        step(member).work_cause = moment.node;  // of the last one
        ++devices_[static_cast<std::size_t>(device_of(member))].collectives;
        set_rate(device_of(member));
      }
      return at(now_ + to_nanoseconds(seconds), What::meeting_done, meetings_.number_of(e));
    }
    case Kind::task:  // a host function: it is called when the device is seen to be there
      return at(now_ + to_nanoseconds(machine_.edges.host), What::work_done, e);
    default:
      return finish(e);  // a record
  }
}

void Replay::finish(int e) {
  step(e).work_end = now_;
  const int s = entry(e).stream;
  Stream& stream = streams_[static_cast<std::size_t>(s)];
  Device& device = devices_[static_cast<std::size_t>(device_of(e))];
  const bool kernel = device.kernel == e;
  stream.busy = false;
  if (entry(e).kind != Kind::record || now_ > stream.free.time) stream.free = {now_, work_node(e)};
  if (entry(e).kind != Kind::record) stream.after_kernel = kernel;
  stream.work.pop_front();
  if (kernel) {
    device.kernel = -1;
    ++device.version;
    leave(device.kernels, e, &Replay::start_kernel);
  }
  for (const int waiter : done_waiters_[static_cast<std::size_t>(e)]) at(now_, What::thread_on, waiter);
  for (const int waiter : stream_waiters_[static_cast<std::size_t>(e)]) {
    streams_[static_cast<std::size_t>(waiter)].blocked = false;
    at(now_, What::stream_on, waiter);
  }
  at(now_, What::stream_on, s);
}

Result simulate(const Recording& recording, const Machine& machine, const Options& options) {
  return Replay(recording, machine, options).run();
}

}  // namespace lockstep::simulate
