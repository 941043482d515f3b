#include "lockstep/parallel/launch/program.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "lockstep/runtime/strings.h"

namespace lockstep::launch {
namespace {

int error_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

int error_in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(cat(path ? path : "/bin:/usr/bin", ':'));  // the end of a line is no folder, but '' is
  int error = ENOENT;
  for (std::string folder; std::getline(folders, folder, ':');) {
    const int here = error_of(folder.empty() ? program : cat(folder, '/', program));
    if (here == 0) return 0;
    if (here == EACCES) error = EACCES;
  }
  return error;
}

}  // namespace

End cannot_run(const std::string& program, int error) {
  return {.code = error == ENOENT || error == ENOTDIR ? kNotFound : kCannotRun,
          .message = cat("cannot run '", program, "': ", std::strerror(error)),
          .next = End::Next::none};
}

std::optional<End> why_not_run(const std::string& program) {
  int error = ENOENT;
  if (!program.empty()) error = program.find('/') == program.npos ? error_in_path(program) : error_of(program);
  return error == 0 ? std::nullopt : std::optional(cannot_run(program, error));
}

}  // namespace lockstep::launch
