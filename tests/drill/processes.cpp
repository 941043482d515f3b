#include "processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace drill {
namespace {

using Clock = std::chrono::steady_clock;

struct Process {
  std::size_t index;
  pid_t id;
  int output;
  Clock::time_point deadline;
  std::string text;
};

Process start(std::size_t index, std::chrono::seconds limit, const std::function<std::string(std::size_t)>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("expected to make a pipe");
  std::fflush(nullptr);  // or the child would print it again
  const pid_t id = fork();
  if (id < 0) throw std::runtime_error("expected to start a process");
  if (id == 0) {
    close(ends[0]);
    const std::string text = body(index);
    const char* rest = text.data();
    for (std::size_t left = text.size(); left > 0;) {
      const ssize_t written = write(ends[1], rest, left);
      if (written < 0 && errno != EINTR) break;
      if (written > 0) rest += written, left -= static_cast<std::size_t>(written);
    }
    std::exit(0);  // as a program ends: with threads that are still there
  }
  close(ends[1]);
  return {index, id, ends[0], Clock::now() + limit, {}};
}

std::string describe_end(int status) {
  char text[64];
  if (WIFSIGNALED(status))
    std::snprintf(text, sizeof text, "ended by signal %d", WTERMSIG(status));
  else
    std::snprintf(text, sizeof text, "exit status %d", WEXITSTATUS(status));
  return text;
}

// Reads what there is; true when the process has closed its end.
bool read_some(Process& process) {
  char buffer[4096];
  const ssize_t got = read(process.output, buffer, sizeof buffer);
  if (got > 0) process.text.append(buffer, static_cast<std::size_t>(got));
  return got == 0 || (got < 0 && errno != EINTR);
}

}  // namespace

void run_processes(std::size_t count, int jobs, std::chrono::seconds limit,
                   const std::function<std::string(std::size_t)>& body,
                   const std::function<void(std::size_t, const Outcome&)>& done) {
  std::vector<Process> running;
  std::size_t next = 0;
  while (next < count || !running.empty()) {
    while (next < count && running.size() < static_cast<std::size_t>(jobs)) {
      running.push_back(start(next, limit, body));
      ++next;
    }
    std::vector<pollfd> ends;
    for (const Process& process : running) ends.push_back({process.output, POLLIN, 0});
    poll(ends.data(), ends.size(), 100);
    for (std::size_t i = running.size(); i-- > 0;) {
      Process& process = running[i];
      const bool over = (ends[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && read_some(process);
      const bool late = !over && Clock::now() >= process.deadline;
      if (!over && !late) continue;
      if (late) kill(process.id, SIGKILL);
      // The pipe closes when the process ends; one that hangs after its last word is late as well.
      int status = 0;
      while (waitpid(process.id, &status, 0) < 0 && errno == EINTR) {
      }
      close(process.output);
      Outcome outcome{Outcome::End::finished, process.text};
      if (late)
        outcome = {Outcome::End::hung, "no end within " + std::to_string(limit.count()) + " s"};
      else if (status != 0)
        outcome = {Outcome::End::crashed, describe_end(status) + ' ' + process.text};
      const std::size_t index = process.index;
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      done(index, outcome);
    }
  }
}

}  // namespace drill
