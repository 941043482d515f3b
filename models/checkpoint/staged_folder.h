// Files of a folder that change together. Private to the library.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/parallel/checkpoint/file_layer.h"

namespace lockstep::detail {

// New files of a folder, which are written into one inside of it until publish() gives them their places. Before that
// nothing of what was there has changed; what goes wrong leaves the folder as it was, and not there where it was not. A
// process that is killed leaves a `.lockstep-XXXXXX` in it. All of it throws Error that begins with [what].
class StagedFolder {
 public:
  // Makes the folder `target`, if need be.
  StagedFolder(const char* what, const std::string& target);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  ~StagedFolder();

  // Where to write them.
  const std::filesystem::path& path() const { return stage_; }
  // Without the file `key`, which is one of them, readers take the folder for none: the old one goes first, and the new
  // one comes last. So whoever reads behind a kill finds the old files, the new ones, or no key, and never some of
  // both.
  void publish(const std::string& key, FileLayer&& files = FileLayer());

 private:
  const char* what_;
  const std::filesystem::path target_;
  std::filesystem::path stage_;
  bool made_ = false;
};

}  // namespace lockstep::detail
