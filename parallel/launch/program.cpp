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

int look_for(const std::string& program) {
  if (program.empty()) return ENOENT;
  return program.find('/') == program.npos ? error_in_path(program) : error_of(program);
}

}  // namespace

End cannot_run(const std::string& program, int error) {
  const bool file_is_there = error == ENOENT && look_for(program) == 0;
  return {.code = error == ENOENT || error == ENOTDIR ? kNotFound : kCannotRun,
          .message = cat("cannot run '", program, "': ",
                         file_is_there ? "the interpreter that the file names is not there" : std::strerror(error)),
          .next = End::Next::none};
}

std::optional<End> why_not_run(const std::string& program) {
  const int error = look_for(program);
  return error == 0 ? std::nullopt : std::optional(cannot_run(program, error));
}

}  // namespace lockstep::launch
