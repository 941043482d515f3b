#include "lockstep/parallel/launch/shown.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

std::vector<std::string_view> split(std::string_view text, char between) {
  std::vector<std::string_view> parts;
  for (std::size_t end; (end = text.find(between)) != text.npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// A number from 0 to `most`.
int number(const char* option, const char* what, std::string_view text, int most) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LOCKSTEP_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most, option,
                 ": expected ", what, " from 0 to ", most, ", got '", text, "'");
  return value;
}

int mode_of(std::string_view text) { return number("--tee", "a mode", text, 3); }

}  // namespace

Shown::Shown(const std::string& tee, const std::string& ranks, int otherwise, int world_size) : others_(otherwise) {
  if (tee.find(':') != tee.npos) {
    others_ = 0;
    for (const std::string_view entry : split(tee, ',')) {
      const std::size_t colon = entry.find(':');
      LOCKSTEP_CHECK(colon != entry.npos, "--tee: expected rank:mode, got '", entry, "'");
      const int rank = number("--tee", "a rank", entry.substr(0, colon), world_size - 1);
      const bool fresh = modes_.emplace(rank, mode_of(entry.substr(colon + 1))).second;
      LOCKSTEP_CHECK(fresh, "--tee: expected every rank once, got rank ", rank, " twice");
    }
  } else if (!tee.empty()) {
    others_ = mode_of(tee);
  }
  if (ranks.empty()) return;
  ranks_.emplace();
  for (const std::string_view entry : split(ranks, ',')) {
    const std::size_t dash = entry.find('-');
    const int first = number("--show", "a rank", entry.substr(0, dash), world_size - 1);
    const int last = dash == entry.npos ? first : number("--show", "a rank", entry.substr(dash + 1), world_size - 1);
    LOCKSTEP_CHECK(first <= last, "--show: expected the lower rank first, got '", entry, "'");
    for (int rank = first; rank <= last; ++rank)
      LOCKSTEP_CHECK(ranks_->insert(rank).second, "--show: expected every rank once, got rank ", rank, " twice");
  }
}

int Shown::mode(int rank) const {
  if (ranks_ && !ranks_->contains(rank)) return 0;
  const auto found = modes_.find(rank);
  return found == modes_.end() ? others_ : found->second;
}

}  // namespace lockstep::launch
