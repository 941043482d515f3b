#include "lockstep/tensor/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::detail {

void fail_system(const char* op, const char* what, const std::string& path, int code) {
  fail<Error>("[", op, "] cannot ", what, " '", path, "': ", std::strerror(code));
}

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

InputFile::InputFile(const char* op, const std::string& path)
    : op_(op), path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe would block
  struct stat status {};
  if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) fail_system(op_, "open", path_, errno);
  if (!S_ISREG(status.st_mode)) fail<Error>("[", op_, "] '", path_, "' is not a regular file");
  bytes_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_.get(), out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system(op_, "read", path_, errno);
    if (got == 0) throw FormatError(path_, offset, "the file ended while it was read");
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::uint64_t>(got);
  }
}

Ref<Storage> InputFile::map() const {
  const auto bytes = static_cast<std::size_t>(bytes_);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_.get(), 0);
  if (memory == MAP_FAILED) fail_system(op_, "map", path_, errno);
  try {
    return Storage::external(Device::cpu(), memory, bytes, [memory, bytes] { ::munmap(memory, bytes); });
  } catch (...) {
    ::munmap(memory, bytes);
    throw;
  }
}

void check_bools(const std::string& path, const Tensor& tensor, std::uint64_t offset) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.data());
  const auto* end = bytes + tensor.bytes();
  const auto* bad = std::find_if(bytes, end, [](unsigned char byte) { return byte > 1; });
  if (bad != end)
    throw FormatError(path, offset + static_cast<std::uint64_t>(bad - bytes),
                      cat("expected 0 or 1 in a tensor of bools, got ", static_cast<int>(*bad)));
}

}  // namespace lockstep::detail
