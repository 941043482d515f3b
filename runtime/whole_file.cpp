#include "lockstep/runtime/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

// The result of a call of the system.
int check(const char* what, int result) {
  if (result < 0) throw FileError{what, errno};
  return result;
}

// What leads to an open file, as long as /proc is there.
std::string descriptor_path(int file) { return cat("/proc/self/fd/", file); }

// Where a file is written that is opened under this name: links are followed, also to what is not there yet.
std::string without_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system follows
  std::filesystem::path target = path;
  for (int links = 0;; ++links) {
    std::error_code no_link;
    const std::filesystem::path next = std::filesystem::read_symlink(target, no_link);
    if (no_link) return target;
    if (links == kMostLinks) throw FileError{"write", ELOOP};
    target = target.parent_path() / next;
  }
}

}  // namespace

std::string read_all(const std::string& path) {
  struct Open {
    int file;
    ~Open() { ::close(file); }
  } const open{check("open", ::open(path.c_str(), O_RDONLY | O_CLOEXEC))};
  std::string text;
  constexpr std::size_t kStep = std::size_t{1} << 16;
  for (std::size_t have = 0;;) {
    text.resize(have + kStep);
    const ssize_t got = ::read(open.file, text.data() + have, kStep);
    if (got < 0 && errno == EINTR) continue;
    have += static_cast<std::size_t>(check("read", static_cast<int>(got)));
    if (got > 0) continue;
    text.resize(have);
    return text;
  }
}

int write_all(int file, const void* from, std::size_t bytes) {
  const auto* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(file, in, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put < 0 ? errno : ENOSPC;
    in += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return 0;
}

WholeFile::WholeFile(const std::string& path, Special special) {
  if (path.empty()) throw FileError{"create", ENOENT};
  struct stat old {};
  const bool replaces = ::stat(path.c_str(), &old) == 0;
  if (replaces && S_ISDIR(old.st_mode)) throw FileError{"replace", EISDIR};
  if (replaces && !S_ISREG(old.st_mode)) {
    // To replace it by a file is not what anybody means.
    if (special == Special::refused) throw FileError{"replace", EINVAL};
    // By its name: the links of /proc lead to no path. A pipe that nobody reads is an error and no wait for a reader.
    file_ = check("open", ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    (void)::fcntl(file_, F_SETFL, 0);
    return;
  }
  target_ = without_links(path);
  folder_ = target_.substr(0, target_.rfind('/') + 1);
  create_temporary();
  // Where that is not allowed the file has the permissions of a new one.
  if (replaces) (void)!::fchmod(file_, old.st_mode & 0777);
}

// A name that is not there yet: make(name) is negative, with EEXIST, for one that is.
template <class Make>
void WholeFile::name_temporary(Make&& make) {
  static std::atomic<unsigned> counter{0};
  for (;;) {
    // Short, whatever the length of the final name.
    const std::string name = cat(folder_, ".lockstep-", ::getpid(), '-', counter.fetch_add(1), ".tmp");
    if (make(name.c_str()) >= 0) {
      temporary_ = name;
      return;
    }
    check("create", errno == EEXIST ? 0 : -1);
  }
}

void WholeFile::create_temporary() {
  const char* folder = folder_.empty() ? "." : folder_.c_str();
  struct stat found {};
  const bool gone = ::stat(folder, &found) == 0 && found.st_nlink == 0;  // takes files that can get no name
  file_ = gone ? -1 : ::open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (file_ >= 0) {
    if (::access(descriptor_path(file_).c_str(), F_OK) == 0) return;  // it can be given a name
    ::close(file_);
  }
  name_temporary(
      [this](const char* name) { return file_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
}

WholeFile::~WholeFile() {
  if (file_ >= 0) ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void WholeFile::write(const void* from, std::size_t bytes) {
  if (const int code = write_all(file_, from, bytes)) throw FileError{"write", code};
}

void WholeFile::commit() {
  if (!target_.empty() && temporary_.empty())  // a link cannot take the place of another
    name_temporary([from = descriptor_path(file_)](const char* name) {
      return ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
    });
  check("close", ::close(std::exchange(file_, -1)));
  if (target_.empty()) return;
  check("replace", std::rename(temporary_.c_str(), target_.c_str()));
  temporary_.clear();
}

void WholeFile::commit_to_disk() {
  check("sync", ::fsync(file_));
  commit();
  // The new name is on disk only when the folder is; some file systems cannot sync a folder.
  const int folder = ::open(folder_.empty() ? "." : folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  const int code = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  if (code != 0 && code != EINVAL) throw FileError{"sync the folder of", code};
}

void write_whole_file(const char* what, const std::string& path, const std::string& text) try {
  WholeFile file(path, WholeFile::Special::written);
  file.write(text.data(), text.size());
  file.commit();
} catch (const FileError& error) {
  throw Error(cat('[', what, "] expected to write \"", path, "\", got: ", std::strerror(error.code)));
}

std::string why_not_writable(const std::string& path) try {
  struct stat found {};
  // To open a pipe and close it again would be its end for the reader.
  if (::stat(path.c_str(), &found) == 0 && S_ISFIFO(found.st_mode))
    check("open", ::access(path.c_str(), W_OK));
  else
    (void)WholeFile(path, WholeFile::Special::written);
  return "";
} catch (const FileError& error) {
  return std::strerror(error.code);
}

}  // namespace lockstep::detail
