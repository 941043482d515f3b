#include "lockstep/tensor/io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "lockstep/tensor/io/internal/safetensors_header.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

[[noreturn]] void fail_system(const char* op, const char* what, const std::string& path, int code) {
  detail::fail<Error>("[", op, "] cannot ", what, " '", path, "': ", std::strerror(code));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// ---- reading

class InputFile {
 public:
  explicit InputFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe would block
    struct stat status {};
    if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) fail_system("load_safetensors", "open", path_, errno);
    if (!S_ISREG(status.st_mode)) detail::fail<Error>("[load_safetensors] '", path_, "' is not a regular file");
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  std::uint64_t bytes() const { return bytes_; }

  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
    auto* out = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t got = ::pread(file_.get(), out, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_system("load_safetensors", "read", path_, errno);
      if (got == 0) throw FormatError(path_, offset, "the file ended while it was read");
      out += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
  }

 private:
  const std::string& path_;
  FileDescriptor file_;
  std::uint64_t bytes_ = 0;
};

// Any other byte in a bool would be undefined behaviour.
void check_bools(const std::string& path, const Tensor& tensor, std::uint64_t offset) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.data());
  const auto* end = bytes + tensor.bytes();
  const auto* bad = std::find_if(bytes, end, [](unsigned char byte) { return byte > 1; });
  if (bad != end)
    throw FormatError(path, offset + static_cast<std::uint64_t>(bad - bytes),
                      cat("expected 0 or 1 in a tensor of dtype BOOL, got ", static_cast<int>(*bad)));
}

// ---- writing

// A file under a temporary name in the folder of `path`, which takes its place in commit() or goes away.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(path), folder_(path.substr(0, path.rfind('/') + 1)), file_(create()) {}
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (!committed_) ::unlink(temporary_.c_str());
  }

  void write(const void* from, std::size_t bytes) {
    const auto* in = static_cast<const char*>(from);
    while (bytes > 0) {
      const ssize_t put = ::write(file_.get(), in, bytes);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) fail("write", put < 0 ? errno : ENOSPC);
      in += put;
      bytes -= static_cast<std::size_t>(put);
    }
  }

  void commit() {
    if (::fsync(file_.get()) != 0) fail("sync", errno);
    if (::close(file_.release()) != 0) fail("close", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace", errno);
    committed_ = true;
    // The new name is on disk only when the folder is; some file systems cannot sync a folder.
    const FileDescriptor folder(::open(folder_.empty() ? "." : folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() >= 0 && ::fsync(folder.get()) != 0 && errno != EINVAL) fail("sync the folder of", errno);
  }

 private:
  [[noreturn]] void fail(const char* what, int code) const { fail_system("save_safetensors", what, path_, code); }

  int create() {
    static std::atomic<unsigned> counter{0};
    for (;;) {
      // Short, whatever the length of the final name.
      temporary_ = cat(folder_, ".lockstep-", ::getpid(), '-', counter.fetch_add(1), ".tmp");
      const int file = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file >= 0) return file;
      if (errno != EEXIST) fail("create", errno);
    }
  }

  const std::string& path_;
  std::string folder_, temporary_;
  FileDescriptor file_;
  bool committed_ = false;
};

}  // namespace

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& each : tensors) {
    LOCKSTEP_CHECK(each.tensor.defined(), "[save_safetensors] expected a tensor for ", detail::quote_name(each.name),
                   ", got an undefined one");
    ordered.push_back(&each);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int rank_a = detail::dtype_rank(a->tensor.dtype()), rank_b = detail::dtype_rank(b->tensor.dtype());
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });

  std::vector<detail::HeaderEntry> entries;
  std::uint64_t end = 0;
  for (const NamedTensor* each : ordered) {
    detail::HeaderEntry& entry = entries.emplace_back();
    entry.name = each->name;
    entry.dtype = each->tensor.dtype();
    entry.shape = each->tensor.shape();
    entry.begin = end;
    entry.end = end += each->tensor.bytes();
  }
  const std::string header = detail::format_header(entries, metadata);

  OutputFile file(path);
  file.write(header.data(), header.size());
  const NoGrad no_grad;
  for (const NamedTensor* each : ordered) {  // one at a time: no second copy of all of them
    const Tensor tensor = each->tensor.detach().contiguous().to(Device::cpu());
    file.write(tensor.data(), tensor.bytes());
  }
  file.commit();
}

Safetensors load_safetensors(const std::string& path) {
  const InputFile file(path);
  if (file.bytes() < detail::kLengthBytes)
    throw FormatError(path, file.bytes(), "expected a header length of 8 bytes, the file is shorter");
  unsigned char length[detail::kLengthBytes];
  file.read(0, length, detail::kLengthBytes);
  std::uint64_t header_bytes = 0;
  for (std::uint64_t i = 0; i < detail::kLengthBytes; ++i) header_bytes |= std::uint64_t{length[i]} << (8 * i);
  if (header_bytes > detail::kMaxHeaderBytes)
    throw FormatError(path, 0,
                      cat("expected a header of at most ", detail::kMaxHeaderBytes, " bytes, got ", header_bytes));
  if (header_bytes > file.bytes() - detail::kLengthBytes)
    throw FormatError(path, file.bytes(), cat("expected a header of ", header_bytes, " bytes, the file ends in it"));
  std::string text(header_bytes, '\0');
  file.read(detail::kLengthBytes, text.data(), header_bytes);
  detail::Header header = detail::parse_header(path, text, file.bytes());

  Safetensors result;
  for (detail::HeaderEntry& entry : header.entries) {
    const std::uint64_t offset = detail::kLengthBytes + header_bytes + entry.begin;
    const Tensor tensor = Tensor::over(Storage::allocate(Device::cpu(), entry.end - entry.begin), entry.dtype,
                                       entry.shape, contiguous_strides(entry.shape));
    file.read(offset, tensor.storage()->data(), entry.end - entry.begin);
    if (entry.dtype == DType::boolean) check_bools(path, tensor, offset);
    result.tensors.push_back({std::move(entry.name), tensor});
  }
  result.metadata = std::move(header.metadata);
  return result;
}

void save_model(const ModuleBase& module, const std::string& path, const std::map<std::string, std::string>& metadata) {
  save_safetensors(path, module.state_dict(), metadata);
}

std::map<std::string, std::string> load_model(ModuleBase& module, const std::string& path, bool strict) {
  Safetensors file = load_safetensors(path);
  module.load_state_dict(file.tensors, strict);
  return std::move(file.metadata);
}

}  // namespace lockstep
