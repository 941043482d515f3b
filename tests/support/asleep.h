// Who waits for another, and has come that far: told from one that is late because the machine is busy.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lockstep/runtime/deadline.h"

namespace lockstep::test {

// Blocks until all threads of the process sleep, and have been found asleep time and again. One that gets no core does
// not sleep. False when it takes longer than a minute.
inline bool falls_asleep(pid_t process) {
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  const auto asleep = [&] {
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
      std::string text;
      std::getline(std::ifstream(task.path() / "stat"), text);
      const std::size_t name_end = text.rfind(") ");
      if (name_end != text.npos && text.compare(name_end + 2, 1, "S") != 0) return false;
    }
    return !gone;
  };
  const Deadline deadline = Deadline::after(Milliseconds(60'000));
  for (int times = 0; times < 10; times = asleep() ? times + 1 : 0) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

}  // namespace lockstep::test
