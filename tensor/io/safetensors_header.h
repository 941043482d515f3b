// The JSON header of a safetensors file as text and as a checked table. Private to the library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/layout.h"

namespace lockstep::detail {

inline constexpr std::uint64_t kLengthBytes = 8;               // of the header's length, with which a file begins
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit
inline constexpr std::string_view kMetadata = "__metadata__";

struct FileDType {
  const char* name;
  int bits;
  std::optional<DType> dtype;  // empty: the format has it, Lockstep does not
};
// In the order of the format's reference implementation, small alignment first.
inline constexpr FileDType kFileDTypes[] = {
    {"BOOL", 8, DType::boolean},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::u8},
    {"I8", 8, DType::i8},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"I32", 32, DType::i32},
    {"U32", 32, {}},
    {"F32", 32, DType::f32},
    {"C64", 64, {}},
    {"F64", 64, DType::f64},
    {"I64", 64, DType::i64},
    {"U64", 64, {}},
};

struct HeaderEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
  std::uint64_t key_offset = 0;      // where the file names it
};

struct Header {
  std::vector<HeaderEntry> entries;  // by offset
  std::map<std::string, std::string> metadata;
};

// Checks all of the format's rules; `text` is the header of a file of `file_bytes` bytes, without the eight bytes of
// its length. Throws FormatError, NotSupported.
Header parse_header(const std::string& file, std::string_view text, std::uint64_t file_bytes);

// The eight bytes of the length and the header, filled up with spaces. The entries come as they are to stand in the
// file. Throws InvalidArgument for text that is not UTF-8, names that are reserved or used twice, too long a header.
std::string format_header(const std::vector<HeaderEntry>& entries, const std::map<std::string, std::string>& metadata);

// The position of a dtype in the order of the format's reference: files begin with the largest.
int dtype_rank(DType dtype);

// A name for a message: in quotes, shortened, without control characters.
std::string quote_name(std::string_view name);

}  // namespace lockstep::detail
