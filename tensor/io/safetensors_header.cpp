#include "lockstep/tensor/io/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

const FileDType* find_dtype(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                   [&](const FileDType& each) { return each.name == name; });
  return found == std::end(kFileDTypes) ? nullptr : found;
}

// Reads characters and tells how far the parser has come.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *reached_ = std::max(*reached_, ++at_);
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Receives the JSON token by token, so that duplicate keys are seen and depth and lengths are bounded.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Tensor {
    HeaderEntry entry;
    const FileDType* dtype = nullptr;
    std::vector<std::uint64_t> sizes, offsets;
    bool has_shape = false;
    std::uint64_t offsets_offset = 0;  // where the file says them
  };

  HeaderReader(const std::string& file, std::string_view text) : file_(file), text_(text) {}

  void read() {
    reached_ = previous_end_ = text_.data();
    const char* end = text_.data() + text_.size();
    if (!nlohmann::json::sax_parse(CountingIterator(text_.data(), &reached_), CountingIterator(end, &reached_), this))
      fail(error_offset_, "the header is not valid JSON");  // the other errors have been thrown
  }

  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;

  bool start_object(std::size_t) override {
    begin_token();
    switch (state_) {
      case State::start:
        state_ = State::names;
        return true;
      case State::tensor:
        state_ = State::fields;
        return true;
      case State::metadata:
        state_ = State::metadata_keys;
        return true;
      default:
        unexpected("an object");
    }
  }
  bool key(string_t& text) override {
    begin_token();
    switch (state_) {
      case State::names:
        name(text);
        break;
      case State::fields:
        field(text);
        break;
      default:
        metadata_key(text);
    }
    return true;
  }
  bool end_object() override {
    begin_token();
    if (state_ == State::fields) finish_tensor();
    state_ = state_ == State::names ? State::done : State::names;
    return true;
  }
  bool start_array(std::size_t) override {
    begin_token();
    if (state_ == State::shape)
      state_ = State::sizes;
    else if (state_ == State::offsets)
      state_ = State::offset_values;
    else
      unexpected("an array");
    return true;
  }
  bool end_array() override {
    begin_token();
    if (state_ == State::offset_values && tensors.back().offsets.size() != 2)
      fail(token_, about("expected two data_offsets, got ", tensors.back().offsets.size()));
    state_ = State::fields;
    return true;
  }
  bool string(string_t& text) override {
    begin_token();
    if (state_ == State::metadata_value) {
      metadata[metadata_key_] = text;
      state_ = State::metadata_keys;
    } else if (state_ == State::dtype) {
      tensors.back().dtype = find_dtype(text);
      if (!tensors.back().dtype) fail(token_, about("unknown dtype ", quote_name(text)));
      state_ = State::fields;
    } else {
      unexpected("a string");
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    begin_token();
    Tensor* tensor = tensors.empty() ? nullptr : &tensors.back();
    if (state_ == State::sizes) {
      if (tensor->sizes.size() == kMaxRank)
        detail::fail<NotSupported>("[load_safetensors] ", file_, ": ", about("more than ", kMaxRank, " dimensions"));
      tensor->sizes.push_back(value);
    } else if (state_ == State::offset_values) {
      if (tensor->offsets.size() == 2) fail(token_, about("expected two data_offsets, got more"));
      tensor->offsets.push_back(value);
    } else {
      unexpected("a number");
    }
    return true;
  }
  bool number_integer(number_integer_t) override { return unexpected_token("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected_token("a number that is not an integer of 64 bits");
  }
  bool null() override { return unexpected_token("null"); }
  bool boolean(bool) override { return unexpected_token("a truth value"); }
  bool binary(binary_t&) override { return unexpected_token("binary data"); }
  bool parse_error(std::size_t characters_read, const std::string&, const nlohmann::detail::exception&) override {
    error_offset_ = kLengthBytes + std::max<std::size_t>(characters_read, 1) - 1;  // the one read last does not fit
    return false;
  }

  template <class... Parts>
  [[noreturn]] void fail(std::uint64_t offset, const Parts&... parts) const {
    throw FormatError(file_, offset, cat(parts...));
  }

 private:
  enum class State {
    start,
    names,
    tensor,
    fields,
    dtype,
    shape,
    sizes,
    offsets,
    offset_values,
    metadata,
    metadata_keys,
    metadata_value,
    done
  };

  // How far the parser has read is where the token ends; it begins after what separates it from the one before it.
  void begin_token() {
    const char* at = previous_end_;
    while (at < reached_ && std::strchr(" \t\r\n,:", *at)) ++at;
    token_ = kLengthBytes + static_cast<std::uint64_t>(at - text_.data());
    // After a number the parser has read one character too many, which may be a token itself.
    const bool one_too_many = reached_ - at > 1 && std::strchr("]}", reached_[-1]);
    previous_end_ = one_too_many ? reached_ - 1 : reached_;
  }

  template <class... Parts>
  std::string about(const Parts&... parts) const {
    return cat("tensor ", quote_name(tensors.back().entry.name), ": ", parts...);
  }

  const char* wanted() const {
    switch (state_) {
      case State::start:
        return "expected an object";
      case State::tensor:
        return "expected an object for each tensor";
      case State::dtype:
        return "expected a string for dtype";
      case State::shape:
        return "expected an array for shape";
      case State::sizes:
        return "expected whole numbers for shape";
      case State::offsets:
        return "expected an array for data_offsets";
      case State::offset_values:
        return "expected whole numbers for data_offsets";
      case State::metadata:
        return "expected an object for __metadata__";
      case State::metadata_value:
        return "expected a string for each value of __metadata__";
      default:
        return "expected nothing";
    }
  }
  [[noreturn]] void unexpected(const char* got) const { fail(token_, wanted(), ", got ", got); }
  bool unexpected_token(const char* got) {
    begin_token();
    unexpected(got);
  }

  void name(const std::string& text) {
    if (text == kMetadata) {
      if (has_metadata_) fail(token_, "__metadata__ comes twice");
      has_metadata_ = true;
      state_ = State::metadata;
      return;
    }
    tensors.emplace_back();
    tensors.back().entry.name = text;
    tensors.back().entry.key_offset = token_;
    state_ = State::tensor;
  }
  void field(const std::string& text) {
    const Tensor& tensor = tensors.back();
    const bool is_dtype = text == "dtype", is_shape = text == "shape", is_offsets = text == "data_offsets";
    if (!is_dtype && !is_shape && !is_offsets) fail(token_, about("unknown field ", quote_name(text)));
    if (is_dtype ? tensor.dtype != nullptr : is_shape ? tensor.has_shape : !tensor.offsets.empty())
      fail(token_, about(text, " comes twice"));
    if (is_shape) tensors.back().has_shape = true;
    if (is_offsets) tensors.back().offsets_offset = token_;
    state_ = is_dtype ? State::dtype : is_shape ? State::shape : State::offsets;
  }
  void metadata_key(const std::string& text) {
    if (metadata.count(text)) fail(token_, "__metadata__ has ", quote_name(text), " twice");
    metadata_key_ = text;
    state_ = State::metadata_value;
  }
  void finish_tensor() {
    Tensor& tensor = tensors.back();
    const char* missing = !tensor.dtype            ? "dtype"
                          : !tensor.has_shape      ? "shape"
                          : tensor.offsets.empty() ? "data_offsets"
                                                   : nullptr;
    if (missing) fail(token_, about(missing, " is missing"));
    tensor.entry.begin = tensor.offsets[0];
    tensor.entry.end = tensor.offsets[1];
  }

  const std::string& file_;
  std::string_view text_;
  const char* reached_ = nullptr;
  const char* previous_end_ = nullptr;  // of the last token
  std::uint64_t token_ = 0;             // where the current token begins in the file
  std::uint64_t error_offset_ = 0;
  State state_ = State::start;
  bool has_metadata_ = false;
  std::string metadata_key_;
};

// Turns sizes into a shape and compares it with the bytes that the tensor has.
void check_bytes(const HeaderReader& reader, HeaderReader::Tensor& tensor) {
  HeaderEntry& entry = tensor.entry;
  const std::string name = quote_name(entry.name);
  if (entry.begin > entry.end)
    reader.fail(tensor.offsets_offset, "tensor ", name, ": data_offsets [", entry.begin, ", ", entry.end, "] decrease");
  // The product is formed without zeros first: [2^62, 8, 0] overflows too, whatever the order.
  std::uint64_t count = 1;
  bool overflow = false, empty = false;
  for (const std::uint64_t size : tensor.sizes) {
    if (size == 0)
      empty = true;
    else
      overflow = overflow || __builtin_mul_overflow(count, size, &count);
    overflow = overflow || size > std::uint64_t{1} << 62;
  }
  std::uint64_t bits = 0;
  overflow = overflow || count > std::uint64_t{1} << 62 ||
             __builtin_mul_overflow(count, static_cast<std::uint64_t>(tensor.dtype->bits), &bits);
  if (overflow) reader.fail(entry.key_offset, "tensor ", name, ": its shape has too many elements");
  if (empty) bits = 0;
  if (bits % 8 != 0 || entry.end - entry.begin != bits / 8)
    reader.fail(tensor.offsets_offset, "tensor ", name, ": expected ", (bits + 7) / 8,
                " bytes for its shape and dtype ", tensor.dtype->name, ", got ", entry.end - entry.begin);
  for (const std::uint64_t size : tensor.sizes) entry.shape.push_back(static_cast<std::int64_t>(size));
}

void check_names(const HeaderReader& reader) {
  std::vector<const HeaderEntry*> by_name;
  for (const HeaderReader::Tensor& tensor : reader.tensors) by_name.push_back(&tensor.entry);
  std::stable_sort(by_name.begin(), by_name.end(),
                   [](const HeaderEntry* a, const HeaderEntry* b) { return a->name < b->name; });
  const auto twice = std::adjacent_find(by_name.begin(), by_name.end(),
                                        [](const HeaderEntry* a, const HeaderEntry* b) { return a->name == b->name; });
  if (twice != by_name.end())
    reader.fail((*(twice + 1))->key_offset, "tensor ", quote_name((*twice)->name), " comes twice");
}

}  // namespace

Header parse_header(const std::string& file, std::string_view text, std::uint64_t file_bytes) {
  HeaderReader reader(file, text);
  if (text.empty() || text.front() != '{') reader.fail(kLengthBytes, "expected the header to begin with '{'");
  // The JSON parser would take a zero byte for the end.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    reader.fail(kLengthBytes + zero, "the header is not valid JSON");
  reader.read();
  check_names(reader);
  for (HeaderReader::Tensor& tensor : reader.tensors) check_bytes(reader, tensor);

  std::stable_sort(reader.tensors.begin(), reader.tensors.end(),
                   [](const HeaderReader::Tensor& a, const HeaderReader::Tensor& b) {
                     return std::pair(a.entry.begin, a.entry.end) < std::pair(b.entry.begin, b.entry.end);
                   });
  const std::uint64_t data_bytes = file_bytes - kLengthBytes - text.size();
  std::uint64_t end = 0;
  for (const HeaderReader::Tensor& tensor : reader.tensors) {
    if (tensor.entry.begin != end)
      reader.fail(tensor.offsets_offset, "tensor ", quote_name(tensor.entry.name), ": expected its data to begin at ",
                  end, ", got ", tensor.entry.begin, tensor.entry.begin < end ? " (overlap)" : " (hole)");
    end = tensor.entry.end;
    if (end > data_bytes)
      reader.fail(file_bytes, "tensor ", quote_name(tensor.entry.name), ": expected ", end,
                  " bytes of data, the file has ", data_bytes);
  }
  if (end != data_bytes)
    reader.fail(kLengthBytes + text.size() + end, "expected the file to end here, ", data_bytes - end,
                " bytes belong to no tensor");

  Header header;
  for (HeaderReader::Tensor& tensor : reader.tensors) {
    if (!tensor.dtype->dtype)
      detail::fail<NotSupported>("[load_safetensors] ", file, ": tensor ", quote_name(tensor.entry.name), " has dtype ",
                                 tensor.dtype->name, ", which Lockstep does not have");
    tensor.entry.dtype = *tensor.dtype->dtype;
    header.entries.push_back(std::move(tensor.entry));
  }
  header.metadata = std::move(reader.metadata);
  return header;
}

}  // namespace lockstep::detail
