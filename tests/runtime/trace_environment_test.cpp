// LOCKSTEP_TRACE, in processes of their own: this program again, with a case that is hidden otherwise.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/trace.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;

TEST_CASE("what is traced in a process of its own", "[.traced]") {
  Stream stream(Device::host(0));
  const trace::Scope scope("work");
  stream.backend().fill_bytes(nullptr, 0, 0, stream.handle());
  if (!std::getenv("FORKS")) return;
  const pid_t child = fork();
  if (child == 0) std::exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK(std::filesystem::file_size(std::getenv("LOCKSTEP_TRACE")) == 0);  // written by the one that began it
}

namespace {

// Whether it went well.
bool run_traced(const std::string& file, const std::string& variables = "") {
  static const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = "LOCKSTEP_HOST_MODE=inline LOCKSTEP_TRACE='" + file + "' " + variables + " '" + program +
                              "' 'what is traced in a process of its own' > /dev/null 2>&1";
  return std::system(command.c_str()) == 0;
}

int count_spans(const std::string& path) {
  const nlohmann::json file = nlohmann::json::parse(std::ifstream(path));
  int count = 0;
  for (const auto& event : file.at("traceEvents")) count += event.at("ph") != "M";
  return count;
}

}  // namespace

TEST_CASE("LOCKSTEP_TRACE: a file when the process ends, one for each rank, and for each process that asks for it") {
  const test::TemporaryFolder folder;
  REQUIRE(run_traced(folder / "step.json", "FORKS=1"));
  CHECK(count_spans(folder / "step.json") == 2);
  REQUIRE(run_traced(folder / "step.json", "RANK=3 WORLD_SIZE=4"));
  CHECK(count_spans(folder / "step.rank3.json") == 2);
  REQUIRE(run_traced(folder / ".hidden", "LOCKSTEP_RANK=0 LOCKSTEP_WORLD_SIZE=2 RANK=3 WORLD_SIZE=4"));
  CHECK(count_spans(folder / ".hidden.rank0") == 2);
  REQUIRE(run_traced(folder / "one.json", "RANK=0 WORLD_SIZE=1"));
  CHECK(count_spans(folder / "one.json") == 2);
  REQUIRE(run_traced(folder / "of-%p.json", "RANK=3 WORLD_SIZE=4"));
  int numbered = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    numbered +=
        entry.path().filename().string().starts_with("of-") && entry.path().string().find('%') == std::string::npos;
  CHECK(numbered == 1);
}

TEST_CASE("LOCKSTEP_TRACE: a file that cannot be written is an error at the first use of a device") {
  const test::TemporaryFolder folder;
  CHECK_FALSE(run_traced(folder / "absent/step.json"));
  CHECK_FALSE(run_traced(folder.path()));
}
