#include "in_use.h"

#include <filesystem>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/strings.h"

namespace failures {
namespace {

using namespace lockstep;

std::size_t threads_of_process() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

std::vector<std::string> files_of_process() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const std::string file = std::filesystem::read_symlink(entry.path(), closed).string();
    if (!closed && !file.starts_with("/proc/") && !file.starts_with("/memfd:fake-nccl"))
      files.push_back(file);  // but this folder
  }
  return files;
}

}  // namespace

std::string InUse::text() const {
  std::string all = cat(memory, " bytes, ", threads, " threads, files");
  for (const std::string& file : files) all += ' ' + file;
  return all;
}

InUse in_use(const std::vector<Device>& devices) {
  InUse all{memory_stats(Device::cpu()).in_use_bytes, threads_of_process(), files_of_process()};
  for (const Device device : devices) all.memory += memory_stats(device).in_use_bytes;
  return all;
}

}  // namespace failures
