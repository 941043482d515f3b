#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "lockstep/models/text/stream_decoder.h"
#include "lockstep/tensor/io/npy.h"
#include "lockstep/tensor/io/safetensors.h"

namespace fuzz {
namespace {

// A file in memory that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const unsigned char> bytes) : number_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (number_ < 0 || ::write(number_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("cannot make a file in memory");
    path_ = "/proc/self/fd/" + std::to_string(number_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(number_); }
  const std::string& path() const { return path_; }

 private:
  int number_;
  std::string path_;
};

void expect(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

template <class Load>
Outcome outcome(std::span<const unsigned char> bytes, Load load) {
  const MemoryFile file(bytes);
  try {
    load(file.path());
    return Outcome::loaded;
  } catch (const lockstep::FormatError& error) {
    expect(error.offset <= bytes.size(), "the byte that an error names lies beyond the file");
    expect(error.file == file.path(), "an error names another file");
    return Outcome::malformed;
  } catch (const lockstep::NotSupported&) {
    return Outcome::not_supported;
  }
}

}  // namespace

Outcome load_safetensors(std::span<const unsigned char> bytes) {
  return outcome(bytes, [&](const std::string& path) {
    const lockstep::Safetensors read = lockstep::load_safetensors(path);
    const lockstep::Safetensors mapped = lockstep::load_safetensors(path, {.map = true});
    expect(read.tensors.size() == mapped.tensors.size() && read.metadata == mapped.metadata,
           "a map has other contents");
    std::size_t total = 0;
    for (std::size_t i = 0; i < read.tensors.size(); ++i) {
      const lockstep::NamedTensor &a = read.tensors[i], &b = mapped.tensors[i];
      expect(a.name == b.name && a.tensor.shape() == b.tensor.shape() && a.tensor.dtype() == b.tensor.dtype(),
             "a map has other tensors");
      expect(a.tensor.bytes() == 0 || std::memcmp(a.tensor.data(), b.tensor.data(), a.tensor.bytes()) == 0,
             "a map has other elements");
      total += a.tensor.bytes();
    }
    expect(total <= bytes.size(), "there are more elements than the file has");
  });
}

Outcome load_npy(std::span<const unsigned char> bytes) {
  return outcome(bytes, [&](const std::string& path) {
    const lockstep::Tensor tensor = lockstep::load_npy(path);
    expect(tensor.contiguous_layout() && tensor.bytes() <= bytes.size(), "there are more elements than the file has");
    unsigned sum = 0;
    for (std::size_t i = 0; i < tensor.bytes(); ++i) sum += static_cast<const unsigned char*>(tensor.data())[i];
    expect(sum <= 255 * bytes.size(), "unreachable: the elements are read");
  });
}

Outcome load_tokenizer(std::span<const unsigned char> bytes) {
  return outcome(bytes, [&](const std::string& path) {
    const auto tokenizer = lockstep::Tokenizer::load(path);
    expect(std::uint64_t(tokenizer.size()) <= 16 * bytes.size() + 65536, "a table is larger than the file makes plain");
    const auto ids = tokenizer.encode("it's <s> a\u0301b  \u2581\xFF 123\n\n" + std::string(100, 'a'));
    const std::string text = tokenizer.decode(ids, {.skip_special = false});
    lockstep::StreamDecoder stream(tokenizer, {.skip_special = false, .stops = {text + "?"}});
    std::string streamed;
    for (const std::int64_t id : ids) streamed += stream.push(id);
    streamed += stream.finish();
    expect(streamed == text || text.find("\uFFFD") != std::string::npos, "a stream has another text");
    for (std::int64_t id = -1; id <= tokenizer.size() && id < 100; ++id) {
      const std::string_view token = tokenizer.token_of(id);
      expect(token.empty() || tokenizer.id_of(token) == id, "a token has another id");
    }
  });
}

}  // namespace fuzz
