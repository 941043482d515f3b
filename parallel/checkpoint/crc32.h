// CRC-32, the checksum of zip, png and Python's zlib.crc32. Private to the library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::detail {

// Of the bytes so far, whose checksum is `before`, and these.
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before = 0);

}  // namespace lockstep::detail
