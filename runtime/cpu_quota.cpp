#include "lockstep/runtime/cpu_quota.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

namespace lockstep::detail {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// "150000 100000", microseconds of work in microseconds; "max 100000" is no number, hence no limit.
double share_in(const std::string& path) {
  std::ifstream file(path);
  double quota = 0, period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : kNone;
}
// The same in two files; the quota is -1 where there is no limit.
double share_in_two(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period : kNone;
}

// The least share of a group and of those above it. A container often sees its own group as the root, under another
// name than its own: groups that are not there say nothing.
template <class Share>
double least_share(const std::string& mount, std::string group, Share&& share) {
  double least = kNone;
  for (;;) {
    least = std::fmin(least, share(mount + group));
    if (group.empty()) return least;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

int cpu_quota(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  const auto version2 = [](const std::string& folder) { return share_in(folder + "/cpu.max"); };
  double least = std::fmin(version2(mount), share_in_two(mount + "/cpu"));
  std::ifstream groups(root + "/proc/self/cgroup");
  // "0::/group" of version 2, "4:cpu,cpuacct:/group" of version 1.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    std::string group = line.substr(second + 1);
    if (group.empty() || group[0] != '/' || group == "/") group.clear();
    if (controllers.str().empty()) least = std::fmin(least, least_share(mount, group, version2));
    for (std::string controller; std::getline(controllers, controller, ',');)
      if (controller == "cpu") least = std::fmin(least, least_share(mount + "/cpu", group, share_in_two));
  }
  return least < std::numeric_limits<int>::max() ? static_cast<int>(std::ceil(least)) : 0;
}

}  // namespace lockstep::detail
