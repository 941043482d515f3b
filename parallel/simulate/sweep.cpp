#include "lockstep/parallel/simulate/sweep.h"

#include <algorithm>
#include <charconv>

#include "lockstep/runtime/error.h"

namespace lockstep::simulate {
namespace {

int parse_count(const std::string& word, const std::string& text) {
  int count = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
  LOCKSTEP_CHECK(error == std::errc() && end == word.data() + word.size() && count >= 1 && count <= 65536,
                 "[--sweep] expected numbers of devices from 1 to 65536, as in devices=1..64 or devices=1,2,4, got '",
                 word, "' in '", text, "'");
  return count;
}

}  // namespace

std::vector<int> parse_sweep(const std::string& text) {
  const std::string key = "devices=";
  LOCKSTEP_CHECK(text.compare(0, key.size(), key) == 0, "[--sweep] expected devices=1..64 or devices=1,2,4, got '",
                 text, "'");
  const std::string list = text.substr(key.size());
  std::vector<int> devices;
  if (const std::size_t dots = list.find(".."); dots != std::string::npos) {
    const int first = parse_count(list.substr(0, dots), text), last = parse_count(list.substr(dots + 2), text);
    for (int count = first; count < last; count *= 2) devices.push_back(count);
    LOCKSTEP_CHECK(first <= last, "[--sweep] expected the smaller number first, got '", text, "'");
    devices.push_back(last);
  } else {
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(',', begin), list.size());
      devices.push_back(parse_count(list.substr(begin, end - begin), text));
      begin = end + 1;
    }
    LOCKSTEP_CHECK(std::is_sorted(devices.begin(), devices.end(), std::less_equal<>()),
                   "[--sweep] expected numbers that ascend, got '", text, "'");
  }
  return devices;
}

std::string path_for(const std::string& path, int devices) {
  const std::size_t hole = path.find("{}");
  return hole == std::string::npos ? path : path.substr(0, hole) + std::to_string(devices) + path.substr(hole + 2);
}

std::vector<SweepRow> sweep(const std::vector<int>& devices, const std::function<Result(int)>& replay) {
  std::vector<SweepRow> rows;
  for (const int count : devices) {
    const Result result = replay(count);
    const auto most = std::max_element(result.critical.begin(), result.critical.end());
    rows.push_back({count, result.step(), result.exposed(), 1, static_cast<Part>(most - result.critical.begin())});
    if (rows.back().step > 0)
      rows.back().efficiency = static_cast<double>(rows.front().step) / static_cast<double>(rows.back().step);
  }
  return rows;
}

}  // namespace lockstep::simulate
