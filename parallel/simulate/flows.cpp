#include "lockstep/parallel/simulate/flows.h"

#include <algorithm>

namespace lockstep::simulate {
namespace {
constexpr std::int64_t kUnitsPerByte = 1'000'000'000;
}

Flows::Flows(std::vector<std::int64_t> bytes_per_second, bool keep_rates)
    : capacity_(std::move(bytes_per_second)),
      keep_rates_(keep_rates),
      use_(capacity_.size()),
      total_(capacity_.size()) {}

void Flows::begin(int flow, const std::vector<int>& path, std::int64_t bytes, Nanoseconds now) {
  pass(now);
  Flow made{flow, {}, bytes, static_cast<Units>(bytes) * kUnitsPerByte};
  for (const int link : path) {
    const auto there =
        std::find_if(made.links.begin(), made.links.end(), [&](const auto& each) { return each.first == link; });
    if (there == made.links.end())
      made.links.emplace_back(link, 1);
    else
      ++there->second;
  }
  flows_.push_back(std::move(made));
  unsettled_ = true;
}

// Progressive filling: the link that gives its flows least settles them, and the others share what they leave.
void Flows::share() {
  std::vector<std::int64_t> left = capacity_;
  std::vector<std::int64_t> waiting(capacity_.size(), 0);
  std::vector<Flow*> open;
  for (Flow& flow : flows_) {
    for (const auto& [link, times] : flow.links) waiting[static_cast<std::size_t>(link)] += times;
    open.push_back(&flow);
  }
  while (!open.empty()) {
    std::size_t tightest = 0;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < left.size(); ++i)
      if (waiting[i] > 0 && left[i] / waiting[i] < least) least = left[i] / waiting[i], tightest = i;
    const auto settles = [&](Flow* flow) {
      return std::any_of(flow->links.begin(), flow->links.end(),
                         [&](const auto& each) { return static_cast<std::size_t>(each.first) == tightest; });
    };
    for (Flow* flow : open) {
      if (!settles(flow)) continue;
      flow->rate = std::max<std::int64_t>(least, 1);
      for (const auto& [link, times] : flow->links) {
        waiting[static_cast<std::size_t>(link)] -= times;
        left[static_cast<std::size_t>(link)] -= least * times;
      }
    }
    open.erase(std::remove_if(open.begin(), open.end(), settles), open.end());
  }

  next_end_ = kNever;
  std::vector<std::int64_t> total(capacity_.size(), 0);
  for (const Flow& flow : flows_) {
    next_end_ = std::min(next_end_, now_ + static_cast<Nanoseconds>((flow.left + flow.rate - 1) / flow.rate));
    for (const auto& [link, times] : flow.links) total[static_cast<std::size_t>(link)] += flow.rate * times;
  }
  for (std::size_t i = 0; keep_rates_ && i < total.size(); ++i)
    if (total[i] != total_[i]) rates_.push_back({now_, static_cast<int>(i), total[i]});
  total_ = std::move(total);
  unsettled_ = false;
}

Nanoseconds Flows::next_end() {
  if (unsettled_) share();
  return next_end_;
}

void Flows::pass(Nanoseconds now) {
  if (now == now_) return;
  if (unsettled_) share();
  const Nanoseconds time = now - now_;
  for (Flow& flow : flows_) flow.left -= std::min(flow.left, static_cast<Units>(flow.rate) * time);
  for (std::size_t i = 0; i < use_.size(); ++i)
    if (total_[i] > 0) use_[i].busy += time;
  now_ = now;
}

std::vector<int> Flows::advance(Nanoseconds now) {
  pass(now);
  std::vector<int> ended;
  const auto end = [&](const Flow& flow) {
    if (flow.left > 0) return false;
    ended.push_back(flow.number);
    for (const auto& [link, times] : flow.links) use_[static_cast<std::size_t>(link)].bytes += flow.bytes * times;
    return true;
  };
  flows_.erase(std::remove_if(flows_.begin(), flows_.end(), end), flows_.end());
  unsettled_ = unsettled_ || !ended.empty();
  return ended;
}

}  // namespace lockstep::simulate
