#include "lockstep/runtime/machine_memory.h"

#include <filesystem>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

}  // namespace

TEST_CASE("machine memory: what a container may use, and what it only keeps of files is free") {
  const test::TemporaryFolder root;
  const auto put = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root.path() / path).parent_path());
    test::write_bytes(root / path, text);
  };
  const auto found = [&] {
    const detail::MachineMemory memory = detail::machine_memory(root.path().string());
    return std::pair(memory.total_bytes, memory.free_bytes);
  };
  CHECK(found().first > 0);  // without any file: as the system says
  put("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 62914560 kB\n");
  CHECK(found() == std::pair(64 * kGiB, 60 * kGiB));

  const std::string group = "sys/fs/cgroup/";
  put(group + "memory.max", "max\n");
  put(group + "memory.current", std::to_string(7 * kGiB));
  CHECK(found() == std::pair(64 * kGiB, 60 * kGiB));
  put(group + "memory.max", std::to_string(8 * kGiB));
  CHECK(found() == std::pair(8 * kGiB, kGiB));
  put(group + "memory.stat", "anon 5\nactive_file 7\ninactive_file " + std::to_string(4 * kGiB) + "\nworkingset 1\n");
  CHECK(found() == std::pair(8 * kGiB, 5 * kGiB));

  std::filesystem::remove_all(root / group);
  const std::string old = group + "memory/";
  put(old + "memory.limit_in_bytes", "9223372036854771712\n");  // none
  CHECK(found() == std::pair(64 * kGiB, 60 * kGiB));
  put(old + "memory.limit_in_bytes", std::to_string(8 * kGiB));
  put(old + "memory.usage_in_bytes", std::to_string(9 * kGiB));
  CHECK(found() == std::pair(8 * kGiB, std::uint64_t{0}));
  put(old + "memory.stat", "inactive_file 5\ntotal_inactive_file " + std::to_string(6 * kGiB) + "\n");
  CHECK(found() == std::pair(8 * kGiB, 5 * kGiB));
}
