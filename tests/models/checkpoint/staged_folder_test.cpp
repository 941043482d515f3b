// Files of a folder that change together: after a failure, and after a kill at every step.
#include "lockstep/models/checkpoint/staged_folder.h"

#include <map>

#include "lockstep/runtime/error.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
using FileTexts = std::map<std::string, std::string>;

const FileTexts kOldFiles{{"a", "old"}, {"b", "old"}, {"key", "old"}},
    kNewFiles{{"a", "new"}, {"c", "new"}, {"key", "new"}};

void write_files(const fs::path& folder, const FileTexts& files) {
  for (const auto& [name, text] : files) write_bytes(folder / name, text);
}
FileTexts files_in(const fs::path& folder) {
  FileTexts files;
  for (const fs::directory_entry& each : fs::directory_iterator(folder))
    files[each.path().filename()] = each.is_regular_file() ? read_bytes(each.path()) : "a folder";
  return files;
}

// Does `steps` of what it is asked to, and then nothing any more.
struct CutOff final : detail::FileLayer {
  explicit CutOff(int of) : steps(of) {}
  int steps;
  void step() {
    if (steps-- == 0) throw Error("cut off");
  }
  void rename(const std::string& from, const std::string& to) override {
    step();
    FileLayer::rename(from, to);
  }
  void remove(const std::string& path) override {
    step();
    FileLayer::remove(path);
  }
};

}  // namespace

TEST_CASE("a staged folder that is not published leaves all as it was") {
  const TemporaryFolder folder;
  const fs::path old = folder.path() / "old", fresh = folder.path() / "fresh";
  fs::create_directories(old);
  write_files(old, kOldFiles);
  for (const fs::path& target : {old, fresh}) {
    detail::StagedFolder staged("test", target.string());
    write_files(staged.path(), kNewFiles);
    CHECK(staged.path().parent_path() == target);
  }
  CHECK(files_in(old) == kOldFiles);
  CHECK_FALSE(fs::exists(fresh));
  CHECK_THROWS_WITH(detail::StagedFolder("test", old / "a"), Contains("[test] cannot make the folder"));
}

TEST_CASE("a staged folder takes its place: behind a kill the old files are there, the new ones, or no key") {
  int without_key = 0;
  for (int steps = 0;; ++steps) {
    CAPTURE(steps);
    const TemporaryFolder folder;
    write_files(folder.path(), kOldFiles);
    bool whole = true;
    {
      detail::StagedFolder staged("test", folder.path().string());
      write_files(staged.path(), kNewFiles);
      try {
        staged.publish("key", CutOff(steps));
      } catch (const Error& error) {
        CHECK(std::string(error.what()) == "[test] cut off");
        whole = false;
      }
    }
    FileTexts found = files_in(folder.path());
    if (whole) {
      CHECK(found == FileTexts{{"a", "new"}, {"b", "old"}, {"c", "new"}, {"key", "new"}});
      CHECK(steps == 4);
      break;
    }
    if (steps == 0) CHECK(found == kOldFiles);
    if (steps > 0) CHECK(found.count("key") == 0);
    without_key += steps > 0;
  }
  CHECK(without_key == 3);
}

TEST_CASE("a staged folder does not begin where it cannot end: a folder in the place of a file") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "c");
  write_files(folder.path(), kOldFiles);
  const FileTexts before = files_in(folder.path());
  {
    detail::StagedFolder staged("test", folder.path().string());
    write_files(staged.path(), kNewFiles);
    CHECK_THROWS_WITH(staged.publish("key"), Contains("[test] expected a file or nothing at") && Contains("/c'"));
  }
  CHECK(files_in(folder.path()) == before);
}

}  // namespace lockstep::test
