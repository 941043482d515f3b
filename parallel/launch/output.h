// Lines of the ranks, passed on one by one with the rank before them, and written to a file of each rank.
#pragma once

#include <poll.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/store/socket.h"
#include "lockstep/parallel/launch/shown.h"

namespace lockstep::launch {

class Output {
 public:
  // `shown` says what is passed on.
  Output(bool prefix, Shown shown) : prefix_(prefix), shown_(std::move(shown)) {}

  // The rank's lines go to this file. Throws Error that names it and the system's reason, also where the disk is full.
  void log_to(int rank, const std::string& path, bool append = false);
  // `pipe` is what a rank writes to; `target` (1 or 2) is where its lines go.
  void add(detail::Fd pipe, int rank, int target);
  // Adds what to wait for, and looks at what came. A reader who is slow holds the ranks back, not this process.
  void prepare(std::vector<pollfd>& polls) const;
  void handle(const std::vector<pollfd>& polls);
  // Passes on what has no end of its line yet: no more will come.
  void end_lines();
  // Whether lines are to be changed or left out; else the ranks may as well write themselves.
  bool needed() const { return prefix_ || !shown_.everything(); }
  bool all_read() const;  // nothing more will come
  bool written() const { return sinks_[0].pending.empty() && sinks_[1].pending.empty(); }
  // Nobody reads what is written any more.
  bool closed() const { return sinks_[0].closed || sinks_[1].closed; }
  // The last line, but for empty ones, that a rank wrote to its standard error.
  std::string last_error(int rank) const;
  // A line of lockstep-run itself, after what came before it.
  void say(const std::string& line) { sinks_[1].pending += line; }

 private:
  struct Source {
    detail::Fd pipe;
    int rank;
    std::string line;
    int sink;
    std::string last = {};
  };
  struct Sink {
    int fd;
    std::string pending;
    bool closed = false;
  };
  struct File {
    std::string path;
    detail::Fd fd;
  };
  void read(Source& source);
  void write(Sink& sink);
  void pass_on(Source& source, std::size_t count);
  void write_to_file(int rank, std::string_view line);

  const bool prefix_;
  const Shown shown_;
  std::vector<Source> sources_;
  std::map<int, File> files_;
  std::set<int> without_file_;  // it could not be written any more: all their lines are shown
  Sink sinks_[2] = {{1, {}}, {2, {}}};
};

// The two ends of what a rank writes to: a pseudo-terminal that passes on what it gets as it is, so that programs write
// line by line, or, without `terminal` or where there is none to be had, a pipe.
struct Channel {
  explicit Channel(bool terminal);
  detail::Fd read, write;
};

}  // namespace lockstep::launch
