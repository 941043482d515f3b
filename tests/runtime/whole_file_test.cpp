// Files that are there whole or not at all.
#include "lockstep/runtime/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using detail::WholeFile;
using test::read_bytes;
using test::write_bytes;

namespace {

bool has_files_without_a_name(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) ::close(file);
  return file >= 0;
}

}  // namespace

TEST_CASE("whole file: what a process that is killed has not finished is not there") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "state";
  write_bytes(path, "before");
  const pid_t child = ::fork();
  if (child == 0) {
    WholeFile file(path, WholeFile::Special::refused);
    file.write("after", 5);
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(read_bytes(path) == "before");
  CHECK(folder.count() == (has_files_without_a_name(folder.path().string()) ? 1 : 2));
}

TEST_CASE("whole file: a commit replaces the file and keeps its permissions, and nothing else is left") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "state";
  for (const bool there : {false, true}) {
    if (there) REQUIRE(::chmod(path.c_str(), 0640) == 0);
    WholeFile file(path, WholeFile::Special::refused);
    file.write("whole", 5);
    file.commit_to_disk();
    CHECK(read_bytes(path) == "whole");
    CHECK(folder.count() == 1);
  }
  struct stat found {};
  REQUIRE(::stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0640);
}

TEST_CASE("whole file: what is not committed goes away") {
  const test::TemporaryFolder folder;
  {
    WholeFile file(folder / "state", WholeFile::Special::refused);
    file.write("half", 4);
  }
  CHECK(folder.count() == 0);
}
