#include "lockstep/tensor/io/npy.h"

#include <bit>
#include <cctype>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/tensor/io/file.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "npy files are read as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{1} << 20;
constexpr const char* kOp = "load_npy";

struct Header {
  DType dtype = DType::f32;
  bool fortran_order = false;
  std::vector<std::int64_t> sizes;
};

// The header is the text of a Python dict with three keys; this reads those and no other Python.
class HeaderParser {
 public:
  HeaderParser(const std::string& file, std::string_view text, std::uint64_t offset)
      : file_(file), text_(text), offset_(offset) {}

  Header parse() {
    expect('{');
    bool has_dtype = false, has_order = false, has_shape = false;
    while (!accept('}')) {
      const std::size_t at = skip();
      const std::string_view key = string("a key");
      expect(':');
      bool& seen = key == "descr" ? has_dtype : key == "fortran_order" ? has_order : has_shape;
      if (key != "descr" && key != "fortran_order" && key != "shape")
        fail(at, "expected the keys 'descr', 'fortran_order' and 'shape', got another");
      if (seen) fail(at, cat("the key '", key, "' comes twice"));
      seen = true;
      if (key == "descr")
        dtype();
      else if (key == "fortran_order")
        header_.fortran_order = boolean();
      else
        shape();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    const char* missing = !has_dtype ? "descr" : !has_order ? "fortran_order" : !has_shape ? "shape" : nullptr;
    if (missing) fail(at_ - 1, cat("the key '", missing, "' is missing"));
    skip();
    if (at_ != text_.size()) fail(at_, "expected nothing but blanks after the dict");
    return header_;
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& message) const {
    throw FormatError(file_, offset_ + at, message);
  }
  [[noreturn]] void not_supported(const std::string& what) const {
    detail::fail<NotSupported>("[", kOp, "] ", file_, ": ", what);
  }

  std::size_t skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
    return at_;
  }
  bool next_is(char c) { return skip() < text_.size() && text_[at_] == c; }
  bool accept(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(at_, cat("expected '", c, "' in the header"));
  }
  std::string_view string(const char* what) {
    if (!next_is('\'') && !next_is('"')) fail(at_, cat("expected ", what, " in quotes"));
    const char quote = text_[at_];
    const std::size_t begin = at_ + 1;
    const std::size_t end = text_.find(quote, begin);
    if (end == std::string_view::npos) fail(text_.size(), "a string in the header has no end");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  bool word(std::string_view wanted) {
    if (text_.substr(skip(), wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  bool boolean() {
    if (word("True")) return true;
    if (!word("False")) fail(at_, "expected True or False for 'fortran_order'");
    return false;
  }

  void dtype() {
    const std::size_t at = skip();
    if (next_is('[') || next_is('(') || next_is('{')) not_supported("structured arrays are not supported");
    const std::string_view name = string("the 'descr' of a dtype");
    const auto bad = [&] { fail(at, "expected a 'descr' such as '<f4'"); };
    if (name.size() < 2 || std::string_view("<>|=").find(name[0]) == std::string_view::npos ||
        !std::isalpha(static_cast<unsigned char>(name[1])))
      bad();
    for (const char c : name.substr(2))
      if (!std::isprint(static_cast<unsigned char>(c))) bad();
    if (name[1] == 'O') not_supported("arrays of Python objects are not supported");
    const std::string_view kind = name.substr(1);
    const bool one_byte = kind == "u1" || kind == "i1" || kind == "b1";
    if (name[0] == '>' && !one_byte) not_supported(cat("big-endian arrays are not supported (dtype '", name, "')"));
    struct Known {
      std::string_view name;
      DType dtype;
    };
    constexpr Known kKnown[] = {{"f4", DType::f32}, {"f8", DType::f64}, {"f2", DType::f16}, {"i4", DType::i32},
                                {"i8", DType::i64}, {"u1", DType::u8},  {"i1", DType::i8},  {"b1", DType::boolean}};
    for (const Known& known : kKnown) {
      if (known.name != kind) continue;
      if (name[0] == '|' && !one_byte) bad();
      header_.dtype = known.dtype;
      return;
    }
    not_supported(cat("the dtype '", name, "' is not supported"));
  }

  void shape() {
    expect('(');
    bool comma = true;
    while (!accept(')')) {
      if (!comma) fail(at_, "expected ',' or ')' in 'shape'");
      const std::size_t at = skip();
      std::int64_t size = 0;
      while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
        if (__builtin_mul_overflow(size, std::int64_t{10}, &size) ||
            __builtin_add_overflow(size, std::int64_t{text_[at_] - '0'}, &size))
          fail(at, "a size does not fit 63 bits");
        ++at_;
      }
      if (at_ == at) fail(at, "expected a size that is not negative in 'shape'");
      if (text_[at] == '0' && size != 0)
        fail(at, "expected a size without leading zeros in 'shape'");  // as Python does
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;              // as Python 2 writes it
      header_.sizes.push_back(size);
      comma = accept(',');
    }
    // (3) is a number in Python, (3,) a tuple.
    if (header_.sizes.size() == 1 && !comma) fail(at_ - 1, "expected ',' after the only size in 'shape'");
    if (header_.sizes.size() > static_cast<std::size_t>(kMaxRank))
      not_supported(cat(header_.sizes.size(), " dimensions are more than ", kMaxRank));
  }

  const std::string& file_;
  std::string_view text_;
  std::uint64_t offset_;
  std::size_t at_ = 0;
  Header header_;
};

// The number of bytes of the data; FormatError when it does not fit.
std::uint64_t data_bytes(const std::string& file, std::uint64_t offset, const Header& header) {
  std::int64_t count = 1;
  bool empty = false, overflow = false;
  for (const std::int64_t size : header.sizes) {
    empty = empty || size == 0;
    // The product without zeros must fit too: strides are made of it.
    if (size != 0) overflow = overflow || __builtin_mul_overflow(count, size, &count);
  }
  overflow = overflow || __builtin_mul_overflow(count, static_cast<std::int64_t>(size_of(header.dtype)), &count);
  if (overflow) throw FormatError(file, offset, "the shape has too many elements");
  return empty ? 0 : static_cast<std::uint64_t>(count);
}

}  // namespace

Tensor load_npy(const std::string& path) {
  const detail::InputFile file(kOp, path);
  const auto need = [&](std::uint64_t bytes, const char* what) {
    if (file.bytes() < bytes) throw FormatError(path, file.bytes(), cat("expected ", what, ", the file ends here"));
  };
  unsigned char start[12] = {};
  file.read(0, start, std::min<std::uint64_t>(file.bytes(), sizeof start));
  for (std::size_t i = 0; i < kMagic.size(); ++i)
    if (i >= file.bytes() || start[i] != static_cast<unsigned char>(kMagic[i]))
      throw FormatError(path, i, "expected \"\\x93NUMPY\" at the start of an npy file");
  need(8, "the version of the format");
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0)
    throw FormatError(path, major < 1 || major > 3 ? 6 : 7,
                      cat("expected version 1.0, 2.0 or 3.0 of the format, got ", major, ".", minor));
  const std::uint64_t text_at = major == 1 ? 10 : 12;
  need(text_at, "the length of the header");
  std::uint64_t text_bytes = 0;
  for (std::uint64_t i = 8; i < text_at; ++i) text_bytes |= std::uint64_t{start[i]} << (8 * (i - 8));
  if (text_bytes > kMaxHeaderBytes)
    throw FormatError(path, 8, cat("expected a header of at most ", kMaxHeaderBytes, " bytes, got ", text_bytes));
  need(text_at + text_bytes, "the rest of the header");
  std::string text(text_bytes, '\0');
  file.read(text_at, text.data(), text_bytes);
  const Header header = HeaderParser(path, text, text_at).parse();

  const std::uint64_t data_at = text_at + text_bytes, bytes = data_bytes(path, text_at, header);
  if (bytes != file.bytes() - data_at)
    throw FormatError(path, data_at + std::min(bytes, file.bytes() - data_at),
                      cat("expected ", bytes, " bytes of data, got ", file.bytes() - data_at));
  Shape shape;
  for (std::size_t i = 0; i < header.sizes.size(); ++i)
    shape.push_back(header.sizes[header.fortran_order ? header.sizes.size() - 1 - i : i]);
  Tensor stored = Tensor::over(Storage::allocate(Device::cpu(), bytes), header.dtype, shape, contiguous_strides(shape));
  file.read(data_at, stored.storage()->data(), bytes);
  if (header.dtype == DType::boolean) detail::check_bools(path, stored, data_at);
  if (!header.fortran_order || shape.rank() < 2) return stored;
  Dims reversed;
  for (int i = shape.rank(); i-- > 0;) reversed.push_back(i);
  return stored.permute(reversed).contiguous();
}

}  // namespace lockstep
