// That nothing of a job is left behind, whatever becomes of its ranks and of lockstep-run.
#pragma once

#include <sys/types.h>

#include <string>

#include "lockstep/parallel/comm/store/socket.h"

namespace lockstep::launch {

// The environment variable by which all processes of a job are known. Jobs within jobs have both names in it.
inline constexpr char kRunId[] = "LOCKSTEP_RUN_ID";

// Kills every process of this user whose kRunId contains `id`, until there is none.
void kill_all(const std::string& id);

// A process that does kill_all when this one ends without having dismissed it. To be made before there are threads.
class Guard {
 public:
  explicit Guard(const std::string& id);
  void dismiss();

 private:
  pid_t process_ = -1;
  detail::Fd pipe_;
};

}  // namespace lockstep::launch
