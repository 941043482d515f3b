// LOCKSTEP_TRACE, in processes of their own: this program again, with a case that is hidden otherwise.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/runtime/whole_file.h"
#include "support/catch.h"
#include "support/hidden_case.h"
#include "support/temporary_folder.h"

using namespace lockstep;

TEST_CASE("what is traced in a process of its own", "[.traced]") {
  Stream stream(Device::host(0));
  const trace::Scope scope("work");
  stream.backend().fill_bytes(nullptr, 0, 0, stream.handle());
  if (std::getenv("KILLED")) raise(SIGKILL);
  if (!std::getenv("FORKS")) return;
  const pid_t child = fork();
  if (child == 0) std::exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(std::filesystem::exists(std::getenv("LOCKSTEP_TRACE")));  // written by the one that began it
}

namespace {

// Whether it went well.
bool run_traced(const std::string& file, const std::string& variables = "") {
  return test::run_hidden_case("what is traced in a process of its own",
                               "LOCKSTEP_HOST_MODE=inline LOCKSTEP_TRACE='" + file + "' " + variables);
}

std::vector<std::string> names_in(const test::TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.push_back(entry.path().filename());
  return names;
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

TEST_CASE("LOCKSTEP_TRACE: without it no rank of any launcher writes a file") {
  const test::TemporaryFolder folder;
  for (const char* launcher :
       {"LOCKSTEP_RANK=1 LOCKSTEP_WORLD_SIZE=2", "RANK=1 WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
        "PMI_RANK=1 PMI_SIZE=2", "SLURM_PROCID=1 SLURM_NTASKS=2"})
    CHECK(run_traced("", std::string(launcher) + " env -C '" + folder.path().string() + "'"));
  CHECK(names_in(folder) == std::vector<std::string>{});
}

TEST_CASE("trace: a file is there whole or not at all, and what was there before stays") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "step.json";
  std::ofstream(path) << "before";
  std::filesystem::permissions(path, std::filesystem::perms(0640));
  std::filesystem::create_symlink("step.json", folder / "link.json");
  trace::start();
  trace::stop();
  trace::write(folder / "link.json");
  CHECK(std::filesystem::is_symlink(folder / "link.json"));
  CHECK(count_spans(path) == 0);
  CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms(0640));
  CHECK(names_in(folder).size() == 2);
  std::string message;
  try {
    trace::write("/dev/full");
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message == "[trace] expected to write \"/dev/full\", got: No space left on device");
  CHECK_THROWS_AS(trace::write(folder / "absent/step.json"), Error);
  CHECK_THROWS_AS(trace::write(folder.path().string()), Error);
  CHECK(names_in(folder).size() == 2);
}

TEST_CASE("trace: a pipe is written as it is, also where its name is a link that leads nowhere") {
  const test::TemporaryFolder folder;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const std::string name = "/dev/fd/" + std::to_string(ends[1]);
  trace::start();
  trace::stop();
  CHECK(detail::why_not_writable(name).empty());
  trace::write(name);
  close(ends[1]);
  std::string text;
  for (char part[4096]; const ssize_t got = read(ends[0], part, sizeof part);) {
    REQUIRE(got > 0);
    text.append(part, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  CHECK(nlohmann::json::parse(text).contains("traceEvents"));

  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);  // nobody reads: an error, no wait for a reader
  CHECK(detail::why_not_writable(folder / "fifo").empty());
  CHECK_THROWS_AS(trace::write(folder / "fifo"), Error);
  CHECK(names_in(folder) == std::vector<std::string>{"fifo"});
}

TEST_CASE("LOCKSTEP_TRACE: a process that is killed leaves no file, nor touches the one that was there") {
  const test::TemporaryFolder folder;
  CHECK_FALSE(run_traced(folder / "step.json", "KILLED=1"));
  CHECK(names_in(folder) == std::vector<std::string>{});
}
