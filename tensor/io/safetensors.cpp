#include "lockstep/tensor/io/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "lockstep/tensor/io/internal/file.h"
#include "lockstep/tensor/io/internal/safetensors_header.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using detail::fail_system;
using detail::FileDescriptor;
using detail::InputFile;

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
