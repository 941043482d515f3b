#include "lockstep/runtime/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lockstep::detail {
namespace {

// The number in a file that has no more than that, or the one behind `name` at the beginning of a line; 0 where there
// is none: "max", or no such file.
std::uint64_t number_in(const std::string& path, const std::string& name = "") {
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (!file) return 0;
  unsigned long long number = 0;
  if (name.empty()) {
    if (std::fscanf(file, "%llu", &number) != 1) number = 0;
  } else {
    char line[256], word[128];
    while (std::fgets(line, sizeof line, file)) {
      unsigned long long found = 0;
      if (std::sscanf(line, "%127s %llu", word, &found) == 2 && word == name) number = found;
    }
  }
  std::fclose(file);
  return number;
}

// What a cgroup may use, uses, and keeps of files that nobody has used for a while.
void limit_to(MachineMemory& memory, std::uint64_t limit, std::uint64_t used, std::uint64_t cached) {
  if (limit == 0 || limit >= memory.total_bytes) return;
  const std::uint64_t needed = used - std::min(cached, used);
  memory.total_bytes = limit;
  memory.free_bytes = std::min(memory.free_bytes, limit - std::min(needed, limit));
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo", v2 = root + "/sys/fs/cgroup/", v1 = v2 + "memory/";
  MachineMemory memory{number_in(meminfo, "MemTotal:") << 10, number_in(meminfo, "MemAvailable:") << 10};
  if (memory.total_bytes == 0)
    memory.total_bytes =
        static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  limit_to(memory, number_in(v2 + "memory.max"), number_in(v2 + "memory.current"),
           number_in(v2 + "memory.stat", "inactive_file"));
  limit_to(memory, number_in(v1 + "memory.limit_in_bytes"), number_in(v1 + "memory.usage_in_bytes"),
           number_in(v1 + "memory.stat", "total_inactive_file"));
  return memory;
}

}  // namespace lockstep::detail
