#include "lockstep/parallel/launch/node_facts.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "lockstep/parallel/build_info.h"
#include "lockstep/parallel/comm/fd.h"
#include "lockstep/parallel/launch/job_store.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/machine_memory.h"

namespace lockstep::launch {
namespace {

void find_devices(NodeHealth& mine) try {
  std::map<std::string, int> kinds;
  for (const Device device : accelerators()) {
    mine.device_type = to_string(device.type());
    ++mine.device_count;
    // Those of the host are told apart by their numbers, and share its memory.
    const DeviceProperties& found = properties(device);
    ++kinds[device.type() == DeviceType::host ? "virtual host device"
                                              : cat(found.name, " (", bytes_to_string(found.total_memory_bytes), ')')];
  }
  for (const auto& [name, count] : kinds) mine.devices += cat(mine.devices.empty() ? "" : ", ", count, " x ", name);
  if (mine.device_count == 0) mine.device_error = "none";
} catch (const std::exception& error) {
  mine.device_error = error.what();
}

// In a folder that nobody makes.
NodeHealth::Space space_in(const std::string& path) {
  NodeHealth::Space space{path, 0, ""};
  const std::filesystem::path folder = path;
  std::error_code unknown;
  struct statvfs status {};
  if (!std::filesystem::exists(folder, unknown)) {
    space.error = std::strerror(ENOENT);
  } else if (!std::filesystem::is_directory(folder, unknown)) {
    space.error = std::strerror(ENOTDIR);
  } else if (::statvfs(folder.c_str(), &status) != 0) {
    space.error = std::strerror(errno);
  } else {
    space.free_bytes = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
    // A file without a name says more than permissions, where there can be one.
    const detail::Fd file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
    if (!file && (errno == EACCES || errno == EROFS || errno == ENOSPC || errno == EDQUOT || errno == EPERM))
      space.error = std::strerror(errno);
    else if (!file && ::access(folder.c_str(), W_OK | X_OK) != 0)
      space.error = std::strerror(errno);
  }
  return space;
}

// What is not there yet would be made in the nearest folder that is.
NodeHealth::Space space_for(const std::string& path) {
  std::error_code unknown;
  std::filesystem::path folder = std::filesystem::absolute(path, unknown);
  while (!std::filesystem::exists(folder, unknown) && folder.has_relative_path()) folder = folder.parent_path();
  NodeHealth::Space space = space_in(folder.string());
  space.path = path;
  return space;
}

}  // namespace

NodeHealth look_at_this_node(const Options& options) {
  NodeHealth mine{.node = options.node, .ranks = options.ranks, .host = host_name()};
  mine.build = to_string(build_info());
  find_devices(mine);
  const detail::MachineMemory memory = detail::machine_memory();
  mine.memory_bytes = memory.total_bytes;
  mine.memory_free_bytes = memory.free_bytes;
  if (!options.log_dir.empty()) mine.logs = space_for(options.log_dir);
  mine.shared = space_in("/dev/shm");
  return mine;
}

}  // namespace lockstep::launch
