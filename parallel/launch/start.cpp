// Starting one rank.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/parallel/launch/cleanup.h"
#include "lockstep/parallel/launch/job.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(cat("cannot make a pipe: ", std::strerror(errno)));
    read = detail::Fd(ends[0]);
    write = detail::Fd(ends[1]);
  }
  detail::Fd read, write;
};

// The cores of one of `ranks` that share what this process may use.
cpu_set_t share_of_cores(int rank, int ranks) {
  cpu_set_t all, share;
  CPU_ZERO(&all);
  CPU_ZERO(&share);
  ::sched_getaffinity(0, sizeof all, &all);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  const int count = static_cast<int>(cores.size());
  const int first = count >= ranks ? rank * count / ranks : rank % count;
  const int last = count >= ranks ? (rank + 1) * count / ranks : first + 1;
  for (int i = first; i < last; ++i) CPU_SET(cores[static_cast<std::size_t>(i)], &share);
  return share;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::vector<std::string> Job::environment(int local_rank, const std::string& token) const {
  std::vector<std::string> set = {
      cat("LOCKSTEP_RANK=", options_.node * options_.ranks + local_rank),
      cat("LOCKSTEP_WORLD_SIZE=", options_.nodes * options_.ranks),
      cat("LOCKSTEP_LOCAL_RANK=", local_rank),
      cat("LOCKSTEP_LOCAL_SIZE=", options_.ranks),
      cat("LOCKSTEP_STORE=", nodes_.address()),
      cat(kRunId, "=", run_id_),
      cat("LOCKSTEP_TOKEN=", token),
      "LOCKSTEP_TOKEN_FILE=",
  };
  std::vector<std::string> all;
  for (char** each = environ; *each; ++each) {
    const std::string_view variable = *each;
    const auto is_set = [&](const std::string& other) {
      const auto name = other.substr(0, other.find('=') + 1);
      return variable.starts_with(name);
    };
    if (std::none_of(set.begin(), set.end(), is_set)) all.emplace_back(variable);
  }
  for (std::string& variable : set)
    if (variable.back() != '=') all.push_back(std::move(variable));
  return all;
}

bool Job::start(int local_rank, const std::string& token) {
  std::vector<std::string> arguments = options_.program, variables = environment(local_rank, token);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const cpu_set_t cores = share_of_cores(local_rank, options_.ranks);
  const pid_t parent = ::getpid();
  const int number = options_.node * options_.ranks + local_rank;
  Pipe out, err, failed;
  const pid_t process = ::fork();
  if (process < 0) throw Error(cat("cannot make a process: ", std::strerror(errno)));
  if (process == 0) {
    // Nothing here may allocate: this process may have threads.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    if (options_.bind) ::sched_setaffinity(0, sizeof cores, &cores);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    if (options_.prefix) {
      ::dup2(out.write.get(), 1);
      ::dup2(err.write.get(), 2);
    }
    if (nothing > 2) ::close(nothing);
    ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    ::execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(failed.write.get(), &error, sizeof error);
    ::_exit(127);
  }
  ::setpgid(process, process);  // whichever of the two comes first
  ranks_.push_back({.number = number, .process = process, .running = true});
  failed.write.close();
  int error = 0;
  ssize_t got;
  while ((got = ::read(failed.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got > 0) {
    reason_ = End{error == ENOENT || error == ENOTDIR ? 127 : 126,
                  cat("cannot run '", arguments[0], "': ", std::strerror(error))};
    return false;
  }
  if (options_.prefix) {
    output_.add(std::move(out.read), cat('[', number, "] "), 1);
    output_.add(std::move(err.read), cat('[', number, "] "), 2);
  }
  return true;
}

}  // namespace lockstep::launch
