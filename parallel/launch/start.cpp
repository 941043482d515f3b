// Starting one rank.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/parallel/comm/ranks/launcher_protocol.h"
#include "lockstep/parallel/comm/store/ended_ranks.h"
#include "lockstep/parallel/launch/cleanup.h"
#include "lockstep/parallel/launch/job.h"
#include "lockstep/parallel/launch/program.h"
#include "lockstep/runtime/error.h"

namespace lockstep::launch {
namespace {

// The cores of one of `ranks` that share what this process may use.
cpu_set_t share_of_cores(int rank, int ranks) {
  cpu_set_t all, share;
  CPU_ZERO(&all);
  CPU_ZERO(&share);
  if (::sched_getaffinity(0, sizeof all, &all) != 0 ||
      CPU_COUNT(&all) == 0)  // also with more cores than the set has room for
    throw Error(cat("cannot bind ranks to cores: expected the cores of this process, got ", std::strerror(errno)));
  std::vector<std::size_t> cores;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  const auto me = static_cast<std::size_t>(rank), everybody = static_cast<std::size_t>(ranks);
  const std::size_t first = cores.size() >= everybody ? me * cores.size() / everybody : me % cores.size();
  const std::size_t last = cores.size() >= everybody ? (me + 1) * cores.size() / everybody : first + 1;
  for (std::size_t i = first; i < last; ++i) CPU_SET(cores[i], &share);
  return share;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

bool Job::shares_cores() const {
  const char* const set = std::getenv("OMP_NUM_THREADS");
  return options_.ranks > 1 && !options_.bind && (!set || !*set);
}

std::vector<std::string> Job::environment(int local_rank, const std::string& token) const {
  std::vector<std::string> set = {
      cat("LOCKSTEP_RANK=", options_.node * options_.ranks + local_rank),
      cat("LOCKSTEP_WORLD_SIZE=", options_.world_size()),
      cat("LOCKSTEP_LOCAL_RANK=", local_rank),
      cat("LOCKSTEP_LOCAL_SIZE=", options_.ranks),
      cat("LOCKSTEP_STORE=", nodes_.address()),
      cat(kRunId, "=", run_id_),
      cat(detail::kReports, "=", reports_.name()),
      cat("LOCKSTEP_TOKEN=", token),
      "LOCKSTEP_TOKEN_FILE=",
      cat(detail::kRound, "=", options_.restarts > 0 ? std::to_string(options_.round) : ""),
      cat("LOCKSTEP_RESTARTS=", options_.restarts > 0 ? std::to_string(options_.restarts) : ""),
  };
  // Ranks share the cores: threads for all of them in each would only be in each other's way.
  if (shares_cores()) set.push_back("OMP_NUM_THREADS=1");
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

std::optional<End> Job::start(int local_rank, const std::string& token) {
  std::vector<std::string> arguments = options_.program, variables = environment(local_rank, token);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const cpu_set_t cores = options_.bind ? share_of_cores(local_rank, options_.ranks) : cpu_set_t{};
  const pid_t parent = ::getpid();
  const int number = options_.node * options_.ranks + local_rank;
  const bool captured = output_.needed() || !options_.log_dir.empty();
  Channel out(captured && options_.pty), err(false), failed(false);
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
    if (captured) {
      ::dup2(out.write.get(), 1);
      ::dup2(err.write.get(), 2);
    }
    if (nothing > 2) ::close(nothing);
    ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    ::execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(failed.write.get(), &error, sizeof error);
    ::_exit(kNotFound);
  }
  ::setpgid(process, process);  // whichever of the two comes first
  ranks_.push_back({.end = {.rank = number,
                            .node = node_,
                            .host = host_,
                            .process = process,
                            .log = log_file(options_.log_dir, number)},
                    .running = true});
  failed.write.close();
  int error = 0;
  ssize_t got;
  while ((got = ::read(failed.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (got > 0) return cannot_run(arguments[0], error);
  if (captured) {
    output_.add(std::move(out.read), number, 1);
    output_.add(std::move(err.read), number, 2);
  }
  return std::nullopt;
}

}  // namespace lockstep::launch
