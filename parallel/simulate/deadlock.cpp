// What waits for what when nothing can happen any more.
#include <algorithm>

#include "lockstep/parallel/simulate/replay.h"
#include "lockstep/runtime/error.h"

namespace lockstep::simulate {

int Replay::source_of(int e) const {
  return issued_[static_cast<std::size_t>(e)] != 0 ? static_cast<int>(threads_.size()) + entry(e).stream
                                                   : thread_of_[static_cast<std::size_t>(e)];
}

Replay::Waiting Replay::waiting(int who) const {
  const int threads = static_cast<int>(threads_.size());
  const auto line = [](const Entry& it) { return it.line > 0 ? cat(" (line ", it.line, ")") : std::string(); };
  if (who < threads) {
    const std::size_t t = static_cast<std::size_t>(who);
    const RecordedThread& thread = recording_.threads[t];
    const std::string name = cat("thread ", who, " (", thread.name, ")");
    if (threads_[t].next == thread.entries.size()) return {name + " has ended", -1};
    const Entry& it = thread.entries[threads_[t].next];
    return {cat(name, " waits in ", name_of(it.kind), ' ', it.other.thread, ':', it.other.entry, line(it)),
            it.other.thread < 0      ? -1
            : it.kind == Kind::after ? it.other.thread
                                     : source_of(number(it.other))};
  }
  const std::size_t s = static_cast<std::size_t>(who - threads);
  const std::string name = cat("stream ", s, " of device ", recording_.streams[s].device);
  if (streams_[s].work.empty()) return {name + " has no work", -1};
  const int e = streams_[s].work.front();
  const Entry& it = entry(e);
  if (it.kind != Kind::collective)
    return {cat(name, " waits in ", name_of(it.kind), ' ', it.other.thread, ':', it.other.entry, line(it)),
            it.other.thread < 0 ? -1 : source_of(number(it.other))};
  const Meetings::Meeting& meeting = meetings_.of(e);
  const Collective& collective = recording_.collectives[static_cast<std::size_t>(it.detail)];
  for (const int rank : meeting.expected) {
    const auto called = meeting.called.find(rank);
    const bool there = called != meeting.called.end() &&
                       std::count(meeting.arrived.begin(), meeting.arrived.end(), called->second) > 0;
    if (there) continue;
    const std::string text =
        cat(name, " waits in ", collective.op, " of group ", collective.group, line(it), " for rank ", rank);
    if (called != meeting.called.end()) return {text, source_of(called->second)};
    // Which thread would call it: one that has a collective of this rank and group before it.
    for (std::size_t other = 0; other < entries_.size(); ++other) {
      if (issued_[other] != 0 || entries_[other]->kind != Kind::collective) continue;
      const Collective& candidate = recording_.collectives[static_cast<std::size_t>(entries_[other]->detail)];
      if (candidate.rank == rank && candidate.group == collective.group) return {text, thread_of_[other]};
    }
    return {text + ", which never calls it", -1};
  }
  return {name + " waits", -1};
}

void Replay::fail_deadlock() const {
  const int count = static_cast<int>(threads_.size() + streams_.size());
  const auto stuck = [&](int who) {
    const std::size_t index = static_cast<std::size_t>(who);
    return index < threads_.size() ? threads_[index].next < recording_.threads[index].entries.size()
                                   : !streams_[index - threads_.size()].work.empty();
  };
  std::vector<int> way;
  for (int who = 0; who < count && way.empty(); ++who)
    if (stuck(who)) way.push_back(who);
  std::string text;
  for (;;) {
    const Waiting it = waiting(way.back());
    text += cat(text.empty() ? "" : "; ", it.text);
    if (it.on < 0) break;
    const bool cycle = std::find(way.begin(), way.end(), it.on) != way.end();
    if (cycle) {
      text += cat("; and so on: each waits for the next (again ",
                  it.on < static_cast<int>(threads_.size()) ? cat("thread ", it.on)
                                                            : cat("stream ", it.on - static_cast<int>(threads_.size())),
                  ")");
      break;
    }
    way.push_back(it.on);
  }
  throw Error(cat("[simulate] ", recording_.file, ": a deadlock after ", milliseconds(now_), " ms: ", text));
}

}  // namespace lockstep::simulate
