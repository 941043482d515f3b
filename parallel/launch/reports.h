// What ranks say of a failure before they end.
#pragma once

#include <string>

#include "lockstep/parallel/comm/store/socket.h"

namespace lockstep::launch {

// One rank says whom its failure is about.
struct Report {
  int rank = 0;
  bool well = false;  // it has got over it
  int blamed = 0;     // a rank, or RankEnd::kUnknownRank
  std::string text;
};

// A socket that takes what processes of this user send; see lockstep/parallel/comm/ranks/launcher_protocol.h. What a
// process has sent before it ended is there when its end is known.
class Reports {
 public:
  Reports();
  const std::string& name() const { return name_; }  // for the ranks' environment
  int event() const { return socket_.get(); }        // readable when there is one
  bool next(Report& report);                         // false: there is none

 private:
  std::string name_;
  detail::Fd socket_;
};

}  // namespace lockstep::launch
