// What a finished replay says: the step, what it consists of, and who was busy.
#include <algorithm>
#include <cstdio>

#include "lockstep/parallel/simulate/replay.h"

namespace lockstep::simulate {
namespace {

using Spans = std::vector<std::pair<Nanoseconds, Nanoseconds>>;

// Sorted, without overlaps.
Spans merged(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans out;
  for (const auto& [begin, end] : spans) {
    if (begin >= end) continue;
    if (out.empty() || begin > out.back().second)
      out.emplace_back(begin, end);
    else
      out.back().second = std::max(out.back().second, end);
  }
  return out;
}

Nanoseconds length(const Spans& spans) {
  Nanoseconds sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

// Of both, which are merged.
Nanoseconds overlap(const Spans& a, const Spans& b) {
  Nanoseconds sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<Nanoseconds>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return sum;
}

}  // namespace

Part part_of(const Recording& recording, const Entry& entry) {
  switch (entry.kind) {
    case Kind::kernel:
    case Kind::fill:
      return Part::kernel;
    case Kind::copy: {
      const Copy& copy = recording.copies[static_cast<std::size_t>(entry.detail)];
      return copy.source == copy.destination ? Part::kernel : Part::copy;
    }
    case Kind::collective:
      return Part::collective;
    default:
      return Part::host;
  }
}

std::string milliseconds(Nanoseconds time) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(time) * 1e-6);
  return text;
}

Nanoseconds Result::exposed() const {
  Nanoseconds most = 0;
  for (const auto& [device, use] : devices) most = std::max(most, use.exposed);
  return most;
}

void Replay::read_off(Result& result) const {
  result.machine = machine_.name;
  result.recording = recording_.file;
  result.entries = steps_;
  result.order = issue_order_;
  result.links = flows_.use();
  result.rates = flows_.rates();
  for (int host = 0; host < machine_.network.hosts; ++host)
    for (const Link& link : machine_.links)
      result.link_names.push_back(machine_.network.hosts == 1 ? link.name
                                                              : "host" + std::to_string(host) + "." + link.name);
  for (const std::int64_t rate : flows_.capacities()) result.link_bytes_per_second.push_back(rate);

  // A mark is where its thread is and all that has been issued before is done.
  std::vector<std::pair<Nanoseconds, int>> marks;  // time, node
  Moment latest;
  std::size_t done = 0;
  const auto take = [&](std::size_t up_to) {
    for (; done < up_to; ++done) {
      const int e = issue_order_[done];
      const Nanoseconds end = steps_[static_cast<std::size_t>(e)].work_end;
      if (end != kNever) latest.delay({end, work_node(e)});
    }
  };
  for (const auto& [e, issued] : marks_) {
    take(issued);
    Moment mark{steps_[static_cast<std::size_t>(e)].call_end, call_node(e)};
    mark.delay(latest);
    marks.emplace_back(mark.time, mark.node);
  }
  take(issue_order_.size());
  for (std::size_t e = 0; e < steps_.size(); ++e) latest.delay({steps_[e].call_end, call_node(static_cast<int>(e))});
  result.total = latest.time;
  result.steps = static_cast<int>(marks.size());
  int last = latest.node;
  if (marks.size() >= 2) {
    result.begin = marks[marks.size() - 2].first;
    result.end = marks.back().first;
    last = marks.back().second;
  } else {
    result.end = latest.time;
  }
  find_critical_path(result, last);
  find_use(result);
}

// Backwards from what ended last, each time to what the beginning waited for.
void Replay::find_critical_path(Result& result, int last) const {
  const auto add = [&](Part part, Nanoseconds time) { result.critical[static_cast<std::size_t>(part)] += time; };
  Nanoseconds at = result.end;
  for (int node = last; node >= 0 && at > result.begin;) {
    const Step& made = steps_[static_cast<std::size_t>(node / 2)];
    const bool work = node % 2 == 1;
    const Nanoseconds end = std::clamp(work ? made.work_end : made.call_end, result.begin, at);
    const Nanoseconds begin = std::clamp(work ? made.work_begin : made.call_begin, result.begin, end);
    add(Part::latency, at - end);
    add(work ? part_of(recording_, entry(node / 2)) : Part::host, end - begin);
    at = begin;
    node = work ? made.work_cause : made.call_cause;
  }
  add(Part::latency, at - result.begin);
}

void Replay::find_use(Result& result) const {
  std::map<int, std::pair<Spans, Spans>> spans;  // kernels and moves of each device
  for (const RecordedStream& stream : recording_.streams) spans[stream.device];
  for (std::size_t e = 0; e < steps_.size(); ++e) {
    const Entry& it = *entries_[e];
    if (it.stream < 0 || steps_[e].work_end == kNever) continue;
    const std::pair<Nanoseconds, Nanoseconds> span{std::max(steps_[e].work_begin, result.begin),
                                                   std::min(steps_[e].work_end, result.end)};
    const int device = device_of(static_cast<int>(e));
    switch (part_of(recording_, it)) {
      case Part::kernel:
        spans[device].first.push_back(span);
        break;
      case Part::copy: {
        const Copy& copy = recording_.copies[static_cast<std::size_t>(it.detail)];
        for (const int end : {copy.source, copy.destination})
          if (end != kHostMemory) spans[end].second.push_back(span);
        break;
      }
      case Part::collective:
        spans[device].second.push_back(span);
        break;
      default:
        break;
    }
  }
  for (const auto& [device, both] : spans) {
    const Spans kernels = merged(both.first), moves = merged(both.second);
    result.devices[device] = {length(kernels), length(moves), length(moves) - overlap(kernels, moves)};
  }
}

}  // namespace lockstep::simulate
