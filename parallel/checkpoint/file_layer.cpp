#include "lockstep/parallel/checkpoint/file_layer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lockstep/parallel/checkpoint/crc32.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;  // checksum and file take turns: the bytes are still in the cache

void check(bool well, const char* what, const std::string& path, int code) {
  if (!well) throw Error(cat("cannot ", what, " '", path, "': ", std::strerror(code)));
}

}  // namespace

void FileLayer::make_folder(const std::string& path) {
  const bool made = ::mkdir(path.c_str(), 0777) == 0;
  check(made, "make the folder", path, errno);
}

int FileLayer::create(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  check(file >= 0, "create", path, errno);
  return file;
}

void FileLayer::write(int file, const std::string& path, const void* data, std::size_t bytes) {
  const int code = write_all(file, data, bytes);
  check(code == 0, "write", path, code);
}

void FileLayer::sync(int file, const std::string& path) {
  const bool synced = ::fsync(file) == 0;
  check(synced, "sync", path, errno);
}

void FileLayer::close(int file) noexcept { ::close(file); }

void FileLayer::rename(const std::string& from, const std::string& to) {
  const bool renamed = std::rename(from.c_str(), to.c_str()) == 0;
  check(renamed, "rename", cat(from, "' to '", to), errno);
}

void FileLayer::sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(folder >= 0, "open the folder", path, errno);
  const int code = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  check(code == 0 || code == EINVAL, "sync the folder", path, code);  // some file systems cannot sync a folder
}

void FileLayer::remove(const std::string& path) {
  const bool removed = std::remove(path.c_str()) == 0 || errno == ENOENT;
  check(removed, "remove", path, errno);
}

FileSum write_file(FileLayer& files, const std::string& path, std::span<const FilePart> parts) {
  struct Open {
    FileLayer& files;
    int file;
    ~Open() { files.close(file); }
  };
  const Open open{files, files.create(path)};
  FileSum sum;
  for (const FilePart& part : parts)
    for (std::size_t at = 0; at < part.bytes; at += kPiece) {
      const char* const from = static_cast<const char*>(part.data) + at;
      const std::size_t bytes = std::min(kPiece, part.bytes - at);
      sum.crc32 = crc32(from, bytes, sum.crc32);
      sum.bytes += bytes;
      files.write(open.file, path, from, bytes);
    }
  files.sync(open.file, path);
  return sum;
}

}  // namespace lockstep::detail
