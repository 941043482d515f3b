// Every 16-bit pattern, and every tie between two neighbours.
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/host/half_rows.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

// The value that a 16-bit pattern means, from the definition of the format.
double meaning(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <class T>
T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

template <class T>
void check_all(int exponent_bits, int fraction_bits) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const T value = from_bits<T>(bits);
    const double want = meaning(value.bits, exponent_bits, fraction_bits);
    const float got = value;
    if (std::isnan(want)) {
      wrong += !std::isnan(got) || !std::isnan(static_cast<float>(T(got)));
      continue;
    }
    wrong += got != want || std::signbit(got) != std::signbit(want);
    wrong += T(got).bits != value.bits;  // there and back
  }
  CHECK(wrong == 0);
}

// Between a pattern and its successor: below, at and above the middle.
template <class T>
void check_rounding(std::uint16_t infinity) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const float low = from_bits<T>(bits);
    // Beyond the last finite number the next step would have been twice its exponent.
    const float high = bits + 1 == infinity ? 2 * low - static_cast<float>(from_bits<T>(bits - 1))
                                            : static_cast<float>(from_bits<T>(bits + 1));
    const float middle = low + (high - low) / 2;
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    wrong += T(middle).bits != even || T(-middle).bits != (even | 0x8000);
    if (middle == low) continue;  // float itself has no number in between
    wrong += T(std::nextafter(middle, low)).bits != bits;
    if (std::isfinite(high)) wrong += T(std::nextafter(middle, high)).bits != bits + 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("all f16 patterns convert", "[half]") { check_all<Half>(5, 10); }
TEST_CASE("all bf16 patterns convert", "[half]") { check_all<BFloat16>(8, 7); }
TEST_CASE("f16 rounds to nearest even", "[half]") { check_rounding<Half>(0x7c00); }
TEST_CASE("bf16 rounds to nearest even", "[half]") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const std::uint32_t low = bits << 16;
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    wrong += BFloat16(std::bit_cast<float>(low + 0x7fff)).bits != bits;
    wrong += BFloat16(std::bit_cast<float>(low + 0x8000)).bits != even;
    wrong += BFloat16(std::bit_cast<float>(low + 0x8001)).bits != bits + 1;
  }
  CHECK(wrong == 0);
}
TEST_CASE("16-bit extremes", "[half]") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  CHECK(Half(65504.0f).bits == 0x7bff);
  CHECK(Half(65519.99f).bits == 0x7bff);
  CHECK(Half(65520.0f).bits == 0x7c00);
  CHECK(Half(1e30f).bits == 0x7c00);
  CHECK(Half(-kInf).bits == 0xfc00);
  CHECK(Half(1e-10f).bits == 0);
  CHECK(Half(-1e-10f).bits == 0x8000);
  CHECK(Half(0x1p-24f).bits == 1);
  CHECK(Half(0x1p-25f).bits == 0);
  CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(BFloat16(kInf).bits == 0x7f80);
  // A NaN whose payload is in the low bits alone must not become infinity.
  CHECK(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(static_cast<float>(Half(std::bit_cast<float>(0xff800001u)))));
  static_assert(static_cast<float>(Half(1.5f)) == 1.5f, "usable in constant expressions");
}

TEST_CASE("rows convert as single numbers do, at every length", "[half]") {
  using kernels::host::convert_row;
  std::vector<Half> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  convert_row(halves.data(), wide.data(), std::ssize(halves));
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const auto expected = static_cast<float>(halves[i]);
    if (std::isnan(expected) ? !std::isnan(wide[i])
                             : std::bit_cast<std::uint32_t>(wide[i]) != std::bit_cast<std::uint32_t>(expected))
      FAIL("f16 " << i << ": " << wide[i] << " instead of " << expected);
  }

  std::vector<float> floats;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099)  // a prime: every exponent, and NaNs
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  std::vector<Half> narrow(floats.size());
  convert_row(floats.data(), narrow.data(), std::ssize(floats));
  for (std::size_t i = 0; i < floats.size(); ++i)
    if (narrow[i].bits != Half(floats[i]).bits)
      FAIL(floats[i] << ": " << narrow[i].bits << " instead of " << Half(floats[i]).bits);

  for (std::int64_t count = 0; count <= 17; ++count) {
    std::vector<Half> out(18, Half(-1.0f));
    std::vector<float> back(18, -1.0f);
    std::vector<float> in(18);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.1f * static_cast<float>(i + 1);
    convert_row(in.data(), out.data(), count);
    convert_row(out.data(), back.data(), count);
    for (std::size_t i = 0; i < in.size(); ++i) {
      CHECK(out[i].bits == Half(std::cmp_less(i, count) ? in[i] : -1.0f).bits);
      CHECK(back[i] == (std::cmp_less(i, count) ? static_cast<float>(Half(in[i])) : -1.0f));
    }
  }
}
