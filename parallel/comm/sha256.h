// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104): for tokens and for checksums that travel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/runtime/api.h"

namespace lockstep::detail {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  Sha256& update(const void* data, std::size_t bytes);
  Sha256& update(std::string_view text) { return update(text.data(), text.size()); }
  // Ends the message; the object is done with.
  Digest digest();

 private:
  void block(const std::uint8_t* bytes);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> pending_{};
  std::uint64_t bytes_ = 0;
};

LOCKSTEP_API Digest hmac_sha256(std::string_view key, std::string_view message);

LOCKSTEP_API std::string to_hex(std::string_view bytes);
inline std::string to_hex(const Digest& digest) {
  return to_hex(std::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// Takes the same time wherever the two differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// From the system's generator. Throws Error when it has none.
LOCKSTEP_API std::string random_bytes(std::size_t bytes);

}  // namespace lockstep::detail
