// A system that starts no more threads.
#pragma once

namespace conformance {

// Until the end of its life, this thread can start so many others, and no more.
class NoThreads {
 public:
  explicit NoThreads(int more);
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
};

}  // namespace conformance
