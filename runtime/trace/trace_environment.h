// Private to the library.
#pragma once

#include "lockstep/runtime/trace/trace.h"

namespace lockstep::trace::detail {

// With LOCKSTEP_TRACE set: records from now on and writes the file when the process ends. Once, when devices are made.
void start_from_environment();
// The file of this process: "%p" stands for its number; the name of a rank among several says which one it is
// ("step.json" becomes "step.rank3.json"), unless its number does.
std::string file_of_process(std::string path);

// Ranges of a host thread for a profiler: what a backend knows of one.
struct Ranges {
  void (*push)(const char* name);
  void (*pop)();
};
// Once, before anything is traced. `always`: also while nothing is recorded.
void use_ranges(const Ranges& ranges, bool always);

// A range of the calling thread, while there are any.
class RangeScope {
 public:
  explicit RangeScope(const char* name);
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;
  ~RangeScope();

 private:
  bool pushed_;
};

// For WorkScope: what the calling thread's work is called from now on; gives what it was called before. A token that
// also stands for a range of the thread, if there are ranges, and the token without it.
Work exchange_work(const Work& work);
Token push_work_range(const char* name, Token token);
Token without_range(Token token);

// Whether what the calling thread enqueues belongs to a WorkScope.
bool in_work_scope();

}  // namespace lockstep::trace::detail
