#include "lockstep/parallel/simulate/meetings.h"

#include "lockstep/runtime/error.h"

namespace lockstep::simulate {

Meetings::Meetings(const Recording& recording) : recording_(recording) {
  for (const Collective& each : recording.collectives) ranks_[channel(each)].insert(each.rank);
}

Meetings::Channel Meetings::channel(const Collective& collective) {
  if (collective.op == "send") return {collective.group, collective.rank, collective.root};
  if (collective.op == "recv") return {collective.group, collective.root, collective.rank};
  return {collective.group, -1, -1};
}

void Meetings::issue(int e, const Entry& entry) {
  const Collective& it = recording_.collectives[static_cast<std::size_t>(entry.detail)];
  const Channel of = channel(it);
  const std::size_t k = calls_[{of, it.rank}]++;
  std::vector<int>& made = made_[of];
  if (k == made.size()) {
    made.push_back(static_cast<int>(meetings_.size()));
    meetings_.push_back({.expected = ranks_[of], .called = {}, .arrived = {}, .first = &it, .line = entry.line});
  }
  Meeting& meeting = meetings_[static_cast<std::size_t>(made[k])];
  const Collective& first = *meeting.first;
  const bool paired = std::get<1>(of) >= 0;
  LOCKSTEP_CHECK((paired || first.op == it.op) && first.dtype == it.dtype && first.bytes == it.bytes &&
                     first.size == it.size && (paired || first.root == it.root),
                 "[simulate] ", recording_.file, ": expected collective ", k, " of group ", it.group,
                 " to be the same on all ranks, got ", first.op, " of ", first.bytes, " bytes ", first.dtype, " among ",
                 first.size, ", root ", first.root, " (rank ", first.rank, ", line ", meeting.line, "), and ", it.op,
                 " of ", it.bytes, " bytes among ", it.size, ", root ", it.root, " (rank ", it.rank, ", line ",
                 entry.line, ")");
  meeting.called[it.rank] = e;
  meeting_of_[e] = made[k];
}

bool Meetings::arrive(int e) {
  Meeting& meeting = meetings_[static_cast<std::size_t>(meeting_of_.at(e))];
  meeting.arrived.push_back(e);
  return meeting.arrived.size() == meeting.expected.size();
}

}  // namespace lockstep::simulate
