#include "lockstep/parallel/launch/ends.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <sstream>
#include <string_view>

#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::launch {
namespace {

using How = RankEnd::How;
constexpr std::size_t kMostLines = 32;
constexpr std::string_view kNext = " !+";  // behind a code: End::next

std::string time_of(std::int64_t milliseconds) {
  const std::time_t seconds = milliseconds / 1000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[64], fraction[8];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(fraction, sizeof fraction, ".%03d", static_cast<int>(milliseconds % 1000));
  return cat(text, fraction);
}

const RankEnd* find(const std::vector<RankEnd>& ranks, int rank) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankEnd& each) { return each.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

// `ranks` are in the order in which they ended.
const RankEnd* first_cause(const std::vector<RankEnd>& ranks) {
  const auto first = [&](auto&& which) -> const RankEnd* {
    const auto found = std::find_if(ranks.begin(), ranks.end(), which);
    return found == ranks.end() ? nullptr : &*found;
  };
  const RankEnd* cause = first([](const RankEnd& each) { return each.failed(); });
  if (!cause) return nullptr;
  std::vector<const RankEnd*> way;
  while (cause->follows() && cause->blamed != RankEnd::kUnknownRank) {
    const RankEnd* const next = find(ranks, cause->blamed);
    if (!next) break;
    way.push_back(cause);
    if (std::find(way.begin(), way.end(), next) != way.end()) {
      // They name each other in a circle: who spoke first cannot have meant a consequence of that.
      const auto earliest = std::min_element(std::find(way.begin(), way.end(), next), way.end(),
                                             [](auto* a, auto* b) { return a->blamed_order < b->blamed_order; });
      return find(ranks, (*earliest)->blamed);
    }
    cause = next;
  }
  const RankEnd* better = nullptr;
  if (cause->blamed == RankEnd::kUnknownRank)  // it has lost the others, and does not know why
    better = first([](const RankEnd& each) { return each.failed() && !each.follows(); });
  // It does not know, was late itself, or did not come: it may have waited for one that is stopped.
  if (!better && (cause->blamed != RankEnd::kNobody || cause->how == How::cut))
    better = first([](const RankEnd& each) { return each.how == How::stopped; });
  return better ? better : cause;
}

// Of ranks that ended at the same time, one that was killed is rather the cause than one that noticed.
void sort_by_time(std::vector<RankEnd>& ranks) {
  std::stable_sort(ranks.begin(), ranks.end(), [](const RankEnd& a, const RankEnd& b) {
    return std::pair(a.order, a.how != How::killed) < std::pair(b.order, b.how != How::killed);
  });
}

// A program that a shell has started: the shell says that it was killed, as 128 + signal.
std::string meaning_of(int code) {
  return code > 128 && ::sigabbrev_np(code - 128) ? cat(", as a shell says of signal ", signal_name(code - 128)) : "";
}

int code_of(const RankEnd& rank) {
  if (rank.how == How::lost) return 1;
  return rank.how == How::exited ? rank.number : 128 + rank.number;
}

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

}  // namespace

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name ? cat(signal, " (SIG", name, ')') : std::to_string(signal);
}

std::string log_file(const std::string& folder, int rank) {
  return folder.empty() ? "" : cat(folder, "/rank", rank, ".log");
}

std::string describe(const RankEnd& rank) {
  switch (rank.how) {
    case How::exited:
      return cat("exited with code ", rank.number, meaning_of(rank.number));
    case How::killed:
      return cat("was killed by signal ", signal_name(rank.number));
    case How::stopped:
      return cat("was stopped by signal ", signal_name(rank.number));
    case How::lost:
      return "was lost with its node";
    default:
      return "did not end by itself";
  }
}

End end_of(std::vector<RankEnd> ranks) {
  sort_by_time(ranks);
  const RankEnd* const cause = first_cause(ranks);
  if (!cause) return {};
  // A rank without a code of its own, or whose end looks good: that of the first one that failed for it.
  const RankEnd* speaks = cause;
  if (!cause->failed() && cause->how != How::stopped)
    speaks = &*std::find_if(ranks.begin(), ranks.end(), [](const RankEnd& each) { return each.failed(); });
  End end{.code = code_of(*speaks), .message = cat("rank ", cause->rank, ' ', describe(*cause))};

  std::size_t lines = 0, others = 0;
  const auto list = [&](const RankEnd& each) {
    if (++lines > kMostLines) {
      ++others;
      return;
    }
    end.details += cat("\n  rank ", each.rank, " on ");
    end.details += each.node < 0 ? each.host : cat("node ", each.node, " (", each.host, ')');
    if (each.process > 0) end.details += cat(", process ", each.process);
    end.details += cat(", ", time_of(each.order), ": ", describe(each));
    if (each.follows() && each.blamed != RankEnd::kUnknownRank) end.details += cat(" because of rank ", each.blamed);
    if (!each.error.empty()) end.details += cat(": ", each.error);
    if (!each.log.empty()) end.details += cat("\n    log: ", each.log);
  };
  list(*cause);
  std::string cut;
  for (const RankEnd& each : ranks) {
    if (&each == cause) continue;
    if (each.failed())
      list(each);
    else if (!each.ended_well())
      cut += cat(cut.empty() ? "" : ", ", each.rank);
  }
  if (others > 0) end.details += cat("\n  and ", others, " more");
  if (!cut.empty()) end.details += cat("\n  ended by lockstep-run: ", cut);
  return end;
}

int first_failure(std::vector<RankEnd> ranks) {
  sort_by_time(ranks);
  const RankEnd* const cause = first_cause(ranks);
  return cause ? cause->rank : RankEnd::kNobody;
}

End end_by_signal(int signal) {
  return {.code = 128 + signal, .message = cat("ended by signal ", signal_name(signal)), .next = End::Next::none};
}

std::string to_text(const End& end) {
  return cat(end.code, kNext[static_cast<std::size_t>(end.next)], end.message, end.details);
}

End parse_end(const std::string& text) {
  End end{.code = 1};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), end.code);
  if (error == std::errc() && stop != text.data() + text.size()) {
    end.next = static_cast<End::Next>(kNext.find(*stop));
    end.message.assign(stop + 1, text.data() + text.size());
  }
  if (const auto line = end.message.find('\n'); line != std::string::npos) {
    end.details = end.message.substr(line);
    end.message.resize(line);
  }
  return end;
}

std::string to_text(const std::vector<RankEnd>& ranks) {
  // As much of the errors as fits in a value of the store when all have much to say.
  const std::size_t most = Store::kMaxValueBytes / std::max<std::size_t>(ranks.size(), 1);
  std::string text;
  for (const RankEnd& each : ranks) {
    const std::string line = cat(each.rank, ' ', static_cast<int>(each.how), ' ', each.number, ' ', each.order, ' ',
                                 each.blamed, ' ', each.blamed_order, ' ', each.process, ' ', each.node, ' ', each.host,
                                 ' ', each.log.size(), ' ', one_line(each.log), one_line(each.error));
    text.append(line, 0, most - 1).append("\n");
  }
  return text;
}

std::vector<RankEnd> parse_ends(const std::string& text) {
  std::vector<RankEnd> ranks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    RankEnd each;
    int how = 0;
    std::size_t log = 0;
    words >> each.rank >> how >> each.number >> each.order >> each.blamed >> each.blamed_order >> each.process >>
        each.node >> each.host >> log;
    each.how = static_cast<How>(how);
    words.get();
    std::getline(words, each.error);
    each.log = each.error.substr(0, log);
    each.error.erase(0, log);
    ranks.push_back(std::move(each));
  }
  return ranks;
}

}  // namespace lockstep::launch
