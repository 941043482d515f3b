// What checkpoints do to the file system, in single steps. Private to the library; tests put faults in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

// Every call throws Error that names the path and the system's reason.
class LOCKSTEP_API FileLayer {
 public:
  virtual ~FileLayer() = default;
  virtual void make_folder(const std::string& path);
  // A file that is not there yet; its descriptor.
  virtual int create(const std::string& path);
  virtual void write(int file, const std::string& path, const void* data, std::size_t bytes);
  virtual void sync(int file, const std::string& path);
  virtual void close(int file) noexcept;
  virtual void rename(const std::string& from, const std::string& to);
  // The names in a folder are on the disk when this returns.
  virtual void sync_folder(const std::string& path);
  virtual void remove(const std::string& path);  // a file, or a folder that is empty; nothing when it is not there
};

struct FileSum {
  std::uint64_t bytes = 0;
  std::uint32_t crc32 = 0;
};
struct FilePart {
  const void* data;
  std::size_t bytes;
};
// A new file of these parts, on the disk when this returns but for its name. What it has, as it was in memory.
FileSum write_file(FileLayer& files, const std::string& path, std::span<const FilePart> parts);

}  // namespace lockstep::detail
