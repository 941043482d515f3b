#include "lockstep/tensor/io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "lockstep/tensor/io/internal/file.h"
#include "lockstep/tensor/io/internal/safetensors_header.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using detail::fail_system;
using detail::FileDescriptor;
using detail::InputFile;

// ---- writing

[[noreturn]] void fail_saving(const char* what, const std::string& path, int code) {
  fail_system("save_safetensors", what, path, code);
}

// Where a file is written that is opened under this name: links are followed, also to what is not there yet.
std::string without_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system follows
  std::filesystem::path target = path;
  for (int links = 0;; ++links) {
    std::error_code no_link;
    const std::filesystem::path next = std::filesystem::read_symlink(target, no_link);
    if (no_link) return target;
    if (links == kMostLinks) fail_saving("write", path, ELOOP);
    target = target.parent_path() / next;
  }
}

// A file under a temporary name in the folder of the one that `path` leads to, which takes its place, with its
// permissions, in commit() or goes away.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(without_links(path)), folder_(path_.substr(0, path_.rfind('/') + 1)), file_(create()) {}
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
  [[noreturn]] void fail(const char* what, int code) const { fail_saving(what, path_, code); }

  int create() {
    struct stat old {};
    const bool replaces = ::stat(path_.c_str(), &old) == 0;
    // To replace a device or a pipe by a file is not what anybody means.
    if (replaces && !S_ISREG(old.st_mode)) fail("replace", S_ISDIR(old.st_mode) ? EISDIR : EINVAL);
    const int file = create_temporary();
    // Where that is not allowed the file has the permissions of a new one.
    if (replaces) (void)!::fchmod(file, old.st_mode & 0777);
    return file;
  }
  int create_temporary() {
    static std::atomic<unsigned> counter{0};
    for (;;) {
      // Short, whatever the length of the final name.
      temporary_ = cat(folder_, ".lockstep-", ::getpid(), '-', counter.fetch_add(1), ".tmp");
      const int file = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file >= 0) return file;
      if (errno != EEXIST) fail("create", errno);
    }
  }

  std::string path_, folder_, temporary_;
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

Safetensors load_safetensors(const std::string& path, const LoadSafetensorsOptions& options) {
  const InputFile file("load_safetensors", path);
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
  Ref<Storage> mapping;
  if (options.map) mapping = file.map();
  for (detail::HeaderEntry& entry : header.entries) {
    const std::uint64_t offset = detail::kLengthBytes + header_bytes + entry.begin, bytes = entry.end - entry.begin;
    // The format promises no alignment; elements that lie across their natural one are copied.
    const bool zero_copy = mapping && offset % size_of(entry.dtype) == 0;
    const Tensor tensor =
        Tensor::over(zero_copy ? Storage::slice(mapping, offset, bytes) : Storage::allocate(Device::cpu(), bytes),
                     entry.dtype, entry.shape, contiguous_strides(entry.shape));
    if (!zero_copy) file.read(offset, tensor.storage()->data(), bytes);
    if (entry.dtype == DType::boolean) detail::check_bools(path, tensor, offset);
    result.tensors.push_back({std::move(entry.name), tensor});
  }
  result.metadata = std::move(header.metadata);
  return result;
}

}  // namespace lockstep
