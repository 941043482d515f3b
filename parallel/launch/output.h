// Lines of the ranks, passed on one by one with the rank before them.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "lockstep/parallel/comm/internal/socket.h"

namespace lockstep::launch {

class Output {
 public:
  // `pipe` is what a rank writes to; `target` (1 or 2) is where its lines go.
  void add(detail::Fd pipe, std::string prefix, int target);
  // Adds what to wait for, and looks at what came. A reader who is slow holds the ranks back, not this process.
  void prepare(std::vector<pollfd>& polls) const;
  void handle(const std::vector<pollfd>& polls);
  // Nothing more will come, and nothing is left to be written.
  bool finished() const;
  bool written() const { return sinks_[0].pending.empty() && sinks_[1].pending.empty(); }
  // Nobody reads what is written any more.
  bool closed() const { return sinks_[0].closed || sinks_[1].closed; }

 private:
  struct Source {
    detail::Fd pipe;
    std::string prefix, line;
    int sink;
  };
  struct Sink {
    int fd;
    std::string pending;
    bool closed = false;
  };
  void read(Source& source);
  void write(Sink& sink);

  std::vector<Source> sources_;
  Sink sinks_[2] = {{1, {}}, {2, {}}};
};

}  // namespace lockstep::launch
