#include "lockstep/parallel/comm/machine_id.h"

#include <unistd.h>

#include <fstream>

#include "lockstep/runtime/strings.h"

namespace lockstep::detail {
namespace {

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

}  // namespace

std::string machine_id() {
  char link[64] = {};
  const ssize_t bytes = ::readlink("/proc/self/ns/net", link, sizeof link - 1);
  return cat(first_line("/proc/sys/kernel/random/boot_id"), '/',
             std::string(link, bytes > 0 ? static_cast<std::size_t>(bytes) : 0));
}

}  // namespace lockstep::detail
