// Files that are read with suspicion, and memory maps of them. Private to the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Throws Error: "[op] cannot <what> '<path>': <the system's words for code>".
[[noreturn]] void fail_system(const char* op, const char* what, const std::string& path, int code);

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();
  int get() const { return number_; }

 private:
  int number_;
};

class InputFile {
 public:
  // Throws Error when there is no such regular file. `op` must live as long as this.
  InputFile(const char* op, const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  // Throws Error when the system cannot read, FormatError when the file has become shorter.
  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const;
  // The whole file as cpu memory: pages come when they are touched, what is written to them stays in this process. The
  // file must not be empty.
  Ref<Storage> map() const;

 private:
  const char* op_;
  std::string path_;
  FileDescriptor file_;
  std::uint64_t bytes_ = 0;
};

// A contiguous cpu tensor of bools that stands at `offset` of a file: any other byte than 0 and 1 is a FormatError.
void check_bools(const std::string& path, const Tensor& tensor, std::uint64_t offset);

}  // namespace lockstep::detail
