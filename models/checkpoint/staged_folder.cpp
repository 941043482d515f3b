#include "lockstep/models/checkpoint/staged_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

namespace fs = std::filesystem;

StagedFolder::StagedFolder(const char* what, const std::string& target) : what_(what), target_(target) {
  std::error_code error;
  made_ = fs::create_directories(target_, error);
  if (error) throw Error(cat("[", what_, "] cannot make the folder '", target, "': ", error.message()));
  std::string name = (target_ / ".lockstep-XXXXXX").string();
  if (::mkdtemp(name.data())) {
    stage_ = name;
    return;
  }
  const int code = errno;
  if (made_) fs::remove(target_, error);
  throw Error(cat("[", what_, "] cannot make a folder in '", target, "': ", std::strerror(code)));
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  fs::remove_all(stage_, ignored);
  if (made_) fs::remove(target_, ignored);  // where it is empty still
}

void StagedFolder::publish(const std::string& key, FileLayer&& files) try {
  std::vector<fs::path> names;
  for (const fs::directory_entry& each : fs::directory_iterator(stage_)) {
    names.push_back(each.path().filename());
    if (fs::is_directory(target_ / names.back()))  // no file can take its place
      throw Error(cat("expected a file or nothing at '", (target_ / names.back()).string(), "', got a folder"));
  }
  files.remove((target_ / key).string());
  for (const fs::path& name : names)
    if (name != key) files.rename((stage_ / name).string(), (target_ / name).string());
  files.rename((stage_ / key).string(), (target_ / key).string());
} catch (const Error& error) {
  throw Error(cat("[", what_, "] ", error.what()));
} catch (const fs::filesystem_error& error) {
  throw Error(cat("[", what_, "] ", error.what()));
}

}  // namespace lockstep::detail
