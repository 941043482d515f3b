#include "lockstep/parallel/launch/cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

std::string read_file(const std::string& path) {
  const detail::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char bytes[16 << 10];
  ssize_t got;
  while (file && (got = ::read(file.get(), bytes, sizeof bytes)) > 0) text.append(bytes, static_cast<std::size_t>(got));
  return text;
}

bool belongs_to(const std::string& environment, const std::string& id) {
  const std::string name = std::string(kRunId) + "=";
  for (std::size_t at = 0; at < environment.size();) {
    const std::size_t end = std::min(environment.find('\0', at), environment.size());
    const std::string_view variable = std::string_view(environment).substr(at, end - at);
    if (variable.starts_with(name) && variable.find(id) != variable.npos) return true;
    at = end + 1;
  }
  return false;
}

bool kill_once(const std::string& id) {
  DIR* const folder = ::opendir("/proc");
  if (!folder) return false;
  bool found = false;
  while (const dirent* entry = ::readdir(folder)) {
    const pid_t process = std::atoi(entry->d_name);
    struct stat status {};
    const std::string path = std::string("/proc/") + entry->d_name;
    if (process <= 0 || process == ::getpid() || ::stat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid())
      continue;
    // Opened first, so that the number cannot have become another process's in between.
    const detail::Fd handle(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (!handle || !belongs_to(read_file(path + "/environ"), id)) continue;
    found = ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0) == 0 || found;
  }
  ::closedir(folder);
  return found;
}

}  // namespace

void kill_all(const std::string& id) {
  const Deadline deadline = Deadline::after(Milliseconds(5'000));
  while (kill_once(id) && !deadline.passed()) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::this_thread::sleep_for(Milliseconds(2));
  }
}

Guard::Guard(const std::string& id) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(cat("cannot make a pipe: ", std::strerror(errno)));
  detail::Fd mine(ends[0]);
  pipe_ = detail::Fd(ends[1]);
  process_ = ::fork();
  if (process_ < 0) throw Error(cat("cannot make a process: ", std::strerror(errno)));
  if (process_ > 0) return;

  // Neither the terminal's signals nor anything of the launcher's reaches this process.
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "lockstep-guard");
  pipe_.close();
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(nothing, fd);
  for (int fd = 3; fd < 1024; ++fd)
    if (fd != mine.get()) ::close(fd);
  char byte;
  ssize_t got;
  while ((got = ::read(mine.get(), &byte, 1)) < 0 && errno == EINTR) {
  }
  if (got <= 0) kill_all(id);
  ::_exit(0);
}

void Guard::dismiss() {
  const char byte = 0;
  if (::write(pipe_.get(), &byte, 1) != 1) return;
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep::launch
