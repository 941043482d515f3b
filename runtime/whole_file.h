// Files that are there whole or not at all. Private to the library and its launcher.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// What could not be done to a file ("write"), and the system's reason.
struct FileError {
  const char* what;
  int code;
};

// All that is in a file, or comes from a pipe until its end. Throws FileError, also for a folder.
LOCKSTEP_API std::string read_all(const std::string& path);

// Writes all of it to an open file, however often that takes. 0, or the system's reason.
LOCKSTEP_API int write_all(int file, const void* from, std::size_t bytes);

// A file without a name in the folder of the one that `path` leads to, which takes its place, with its permissions, in
// commit() or goes away: whatever goes wrong, what was there before stays and nothing else is left, also of a process
// that is killed, but within commit(): the file has a temporary name there for a moment, since a link replaces nothing.
// Where the file system knows no such files it has that name all along, and a kill leaves it. All of it throws
// FileError.
class WholeFile {
 public:
  // What is no file (a pipe, a terminal) is written as it is, or refused.
  enum class Special : bool { refused, written };
  WholeFile(const std::string& path, Special special);
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  ~WholeFile();

  void write(const void* from, std::size_t bytes);
  void commit();
  // And is on the disk then, where the file system can say so.
  void commit_to_disk();

 private:
  void create_temporary();
  template <class Make>
  void name_temporary(Make&& make);

  std::string target_, folder_, temporary_;  // temporary: empty while the file has no name
  int file_ = -1;
};

// Throws Error that begins with [what] and names the path and the system's reason.
void write_whole_file(const char* what, const std::string& path, const std::string& text);

// Why write_whole_file could not even begin: the system's reason, or an empty text. Leaves nothing behind.
std::string why_not_writable(const std::string& path);

}  // namespace lockstep::detail
