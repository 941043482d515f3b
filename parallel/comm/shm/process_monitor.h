// Notices at once when the process of another rank ends.
#pragma once

#include <sys/types.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/fd.h"
#include "lockstep/parallel/comm/shm/control_block.h"

namespace lockstep::detail {

// A thread that sleeps until one of the descriptors (sockets to ranks, descriptors of their processes) says that the
// other side has ended, and writes it into the control block.
class ProcessMonitor {
 public:
  using Watched = std::pair<Fd, int>;  // the rank
  ProcessMonitor(std::shared_ptr<ControlBlock> control, std::vector<Watched> watched);
  ProcessMonitor(const ProcessMonitor&) = delete;
  ProcessMonitor& operator=(const ProcessMonitor&) = delete;
  ~ProcessMonitor();  // in the process that made it; a forked child has no such thread

 private:
  void watch(int wake);

  std::shared_ptr<ControlBlock> control_;
  std::vector<Watched> watched_;
  Fd wake_;
  pid_t process_;
  std::thread thread_;
};

}  // namespace lockstep::detail
