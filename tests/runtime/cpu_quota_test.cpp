#include "lockstep/runtime/cpu_quota.h"

#include <filesystem>
#include <map>
#include <string>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

// What a machine with these files says.
int quota_of(const std::map<std::string, std::string>& files) {
  const test::TemporaryFolder root;
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = root.path() / name;
    std::filesystem::create_directories(path.parent_path());
    test::write_bytes(path, text + "\n");
  }
  return detail::cpu_quota(root.path().string());
}

}  // namespace

TEST_CASE("a container or a service may use a part of the processors", "[cpu_quota]") {
  CHECK(quota_of({}) == 0);
  CHECK(quota_of({{"proc/self/cgroup", "0::/"}, {"sys/fs/cgroup/cpu.max", "max 100000"}}) == 0);
  CHECK(quota_of({{"proc/self/cgroup", "0::/"}, {"sys/fs/cgroup/cpu.max", "200000 100000"}}) == 2);
  CHECK(quota_of({{"sys/fs/cgroup/cpu.max", "150000 100000"}}) == 2);
  CHECK(quota_of({{"sys/fs/cgroup/cpu.max", "5000 100000"}}) == 1);
  CHECK(quota_of({{"sys/fs/cgroup/cpu.max", "nonsense"}}) == 0);
  // The group of a service, and the one above it, which has less.
  CHECK(quota_of({{"proc/self/cgroup", "0::/system.slice/trainer.service"},
                  {"sys/fs/cgroup/system.slice/trainer.service/cpu.max", "600000 100000"},
                  {"sys/fs/cgroup/system.slice/cpu.max", "max 100000"}}) == 6);
  CHECK(quota_of({{"proc/self/cgroup", "0::/system.slice/trainer.service"},
                  {"sys/fs/cgroup/system.slice/trainer.service/cpu.max", "600000 100000"},
                  {"sys/fs/cgroup/system.slice/cpu.max", "300000 100000"}}) == 3);
  // A container of version 1 whose group has another name outside.
  CHECK(quota_of({{"proc/self/cgroup", "5:memory:/docker/5a\n4:cpu,cpuacct:/docker/5a"},
                  {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000"},
                  {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}}) == 4);
  CHECK(quota_of({{"proc/self/cgroup", "4:cpuacct,cpu:/a/b"},
                  {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000"},
                  {"sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000"},
                  {"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1"},
                  {"sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "50000"}}) == 1);
}
