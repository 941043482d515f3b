#include "lockstep/parallel/launch/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::launch {

JsonFile::JsonFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  fd_ = detail::Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0666));
  if (!fd_) throw Error(cat("cannot write '", path, "': ", std::strerror(errno)));
}

std::string JsonFile::write(const std::string& text) {
  if (!fd_) return "";
  int failed = detail::write_all(fd_.get(), text.data(), text.size());
  // Who has been given the same name may have written more to it.
  struct stat status {};
  if (failed == 0 && ::fstat(fd_.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      ::ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0)
    failed = errno;
  if (failed != 0) return cat("cannot write '", path_, "': ", std::strerror(failed));
  fd_.close();
  return "";
}

}  // namespace lockstep::launch
