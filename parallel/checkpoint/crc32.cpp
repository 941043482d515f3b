#include "lockstep/parallel/checkpoint/crc32.h"

#include <array>
#include <cstring>

namespace lockstep::detail {
namespace {

// Table k says what a byte does to the checksum that k bytes come after.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0xedb88320u : 0);
    tables[0][i] = value;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t i = 0; i < 256; ++i) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xff];
  return tables;
}();

}  // namespace

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  const auto* in = static_cast<const unsigned char*>(data);
  std::uint32_t value = ~before;
  for (; bytes >= 8; bytes -= 8, in += 8) {  // little-endian, as all of the library
    std::uint32_t low, high;
    std::memcpy(&low, in, 4);
    std::memcpy(&high, in + 4, 4);
    low ^= value;
    value = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
            kTables[4][low >> 24] ^ kTables[3][high & 0xff] ^ kTables[2][(high >> 8) & 0xff] ^
            kTables[1][(high >> 16) & 0xff] ^ kTables[0][high >> 24];
  }
  for (; bytes > 0; --bytes) value = (value >> 8) ^ kTables[0][(value ^ *in++) & 0xff];
  return ~value;
}

}  // namespace lockstep::detail
