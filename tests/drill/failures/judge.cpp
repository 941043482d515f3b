#include "judge.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/strings.h"
#include "rank.h"
#include "support/temporary_folder.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace failures {
namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::seconds kLimit{900};
#else
constexpr std::chrono::seconds kLimit{240};
#endif

struct Child {
  pid_t id = -1;
  int output = -1, status = 0;
  bool ended = false, stopped = false;
  std::string text;
};

Child start(const Cell& cell, std::uint64_t seed, const std::string& program, int process, const std::string& store,
            const std::string& folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("expected to make a pipe");
  const std::vector<std::string> arguments = {
      program, "--rank-process", cell.name(), std::to_string(seed), std::to_string(process), store, folder};
  std::vector<char*> argv, variables;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::string temporary = "TMPDIR=" + folder;
  for (char** each = environ; *each; ++each)
    if (!std::string(*each).starts_with("TMPDIR=")) variables.push_back(*each);
  variables.push_back(temporary.data());
  variables.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  Child child;
  const int error = ::posix_spawn(&child.id, program.c_str(), &actions, nullptr, argv.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) throw std::runtime_error("expected to start a process");
  child.output = ends[0];
  return child;
}

// Reads what there is; the end of its output is the end of the process, which is reaped.
void read_some(Child& child) {
  char buffer[4096];
  const ssize_t got = ::read(child.output, buffer, sizeof buffer);
  if (got < 0 && errno == EINTR) return;
  if (got > 0) {
    child.text.append(buffer, static_cast<std::size_t>(got));
    return;
  }
  ::close(child.output);
  while (::waitpid(child.id, &child.status, 0) < 0 && errno == EINTR) {
  }
  child.ended = true;
}

bool is_stopped(const Child& child) {
  siginfo_t state{};
  ::waitid(P_PID, static_cast<id_t>(child.id), &state, WSTOPPED | WNOHANG | WNOWAIT);
  return state.si_pid == child.id;
}

// Until all have ended. One that has stopped goes on when the others have. False: not within the limit.
bool wait_for(std::vector<Child>& children) {
  const Clock::time_point limit = Clock::now() + kLimit;
  bool in_time = true;
  for (;;) {
    std::vector<pollfd> polled;
    bool others = false;
    for (Child& child : children) {
      polled.push_back({child.ended ? -1 : child.output, POLLIN, 0});
      if (child.ended) continue;
      child.stopped = child.stopped || is_stopped(child);
      others = others || !is_stopped(child);
    }
    if (std::all_of(children.begin(), children.end(), [](const Child& child) { return child.ended; })) return in_time;
    if (in_time && Clock::now() >= limit) {
      in_time = false;
      for (const Child& child : children)
        if (!child.ended) ::kill(child.id, SIGKILL);
    }
    for (const Child& child : children)
      if (!child.ended && !others) ::kill(child.id, SIGCONT);
    ::poll(polled.data(), polled.size(), 20);
    for (std::size_t i = 0; i < children.size(); ++i)
      if (polled[i].revents) read_some(children[i]);
  }
}

std::string what_is_in(const char* folder, const std::string& part) {
  std::string names;
  DIR* const directory = ::opendir(folder);
  if (!directory) return "";
  while (const dirent* const entry = ::readdir(directory))
    if (const std::string name = entry->d_name; name != "." && name != ".." && name.find(part) != name.npos)
      names += (names.empty() ? "" : ", ") + name;
  ::closedir(directory);
  return names;
}

// What is wrong with how the processes have ended.
std::string judge_ends(const Cell& cell, std::uint64_t seed, const std::vector<Child>& children) {
  for (std::size_t p = 0; p < children.size(); ++p) {
    const Child& child = children[p];
    const bool lost = cell.takes_process() && cell.process_of(cell.victim(seed)) == static_cast<int>(p);
    if (lost && cell.fault == Fault::killed) {
      if (!WIFSIGNALED(child.status) || WTERMSIG(child.status) != SIGKILL) return cat("process ", p, " was not killed");
      continue;
    }
    if (lost && !child.stopped) return cat("process ", p, " was not stopped");
    if (!WIFEXITED(child.status) || WEXITSTATUS(child.status) != 0)
      return cat("process ", p, " ended with status ", child.status);
    if (child.text.find("process clean\n") == child.text.npos) return cat("process ", p, " was not left clean");
  }
  return "";
}

// Whether this error came because a deadline had passed: it says so then, whatever the time.
bool tells_of_deadline(const std::string& text) {
  return text.find(cat("within ", kDeadlineMilliseconds, " ms")) != text.npos ||
         text.find("before the deadline") != text.npos;
}

// What is wrong with what the ranks say; `at_deadline`: whether a survivor was told by a deadline.
std::string judge_ranks(const Cell& cell, std::uint64_t seed, const std::vector<Child>& children, bool& at_deadline) {
  std::map<int, std::string> said;
  for (const Child& child : children) {
    std::istringstream lines(child.text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string word;
      int rank = -1;
      if (words >> word >> rank && word == "rank") said[rank] = line.substr(line.find(' ', 5) + 1);
    }
  }
  std::string hash;
  for (const int rank : cell.survivors(seed)) {
    std::istringstream words(said[rank]);
    std::string word, its;
    words >> word >> its;
    if (word != "good") return cat("rank ", rank, ": ", said[rank].empty() ? "says nothing" : said[rank]);
    if (hash.empty()) hash = its;
    if (its != hash) return cat("rank ", rank, " has other parameters than the first survivor");
    at_deadline = at_deadline || tells_of_deadline(said[rank]);
  }
  // Where it should come at once the deadline is far beyond what an error may take.
  if (at_deadline != cell.noticed_at_deadline() && !cell.may_be_noticed_before())
    return cat("expected the survivors to hear of it at ", at_deadline ? "once" : "the deadline", ", they did at ",
               at_deadline ? "the deadline" : "once", ": ", said[cell.survivors(seed)[0]]);
  for (const auto& [rank, text] : said)
    if (text.starts_with("wrong")) return cat("rank ", rank, ": ", text);
  // Whoever goes on after having been stopped hears of it.
  if (cell.fault == Fault::stopped)
    for (const int rank : cell.lost(seed))
      if (!said[rank].starts_with("failed with an error") && said[rank].find("; left out: ") == std::string::npos)
        return cat("rank ", rank, " went on and heard nothing: ", said[rank]);
  return "";
}

}  // namespace

Verdict judge(const Cell& cell, std::uint64_t seed, const std::string& program) {
  const Clock::time_point begin = Clock::now();
  const lockstep::test::TemporaryFolder folder;
  const TcpStoreServer server;
  std::vector<Child> children;
  for (int p = 0; p < cell.processes(); ++p)
    children.push_back(start(cell, seed, program, p, server.address(), folder.path().string()));
  const bool ended = wait_for(children);
  Verdict verdict;
  for (const Child& child : children) verdict.log += child.text;
  verdict.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const bool struck = make_tcp_store({.address = server.address()})->try_get(kStruck).has_value();
  if (!ended)
    verdict.wrong = cat("it hangs: no end within ", kLimit.count(), " s");
  else if (!struck)
    verdict.wrong = "its fault did not strike";
  if (verdict.wrong.empty()) verdict.wrong = judge_ranks(cell, seed, children, verdict.at_deadline);
  if (verdict.wrong.empty()) verdict.wrong = judge_ends(cell, seed, children);
  const std::string files = what_is_in(folder.path().c_str(), "");
  const bool saves = cell.place != Place::before_init && cell.place != Place::in_init;
  if (verdict.wrong.empty() && files != (saves ? "checkpoint" : "")) verdict.wrong = cat("files are left: ", files);
  if (const std::string shared = what_is_in("/dev/shm", "lockstep"); verdict.wrong.empty() && !shared.empty())
    verdict.wrong = cat("shared memory is left: ", shared);
  return verdict;
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::string children_left() {
  siginfo_t state{};
  if (::waitid(P_ALL, 0, &state, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD) return "";
  return cat("process ", state.si_pid, " is left");
}

}  // namespace failures
