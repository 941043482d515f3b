#include "lockstep/kernels/philox.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("Philox 4x32-10 gives the published words", "[random]") {
  const auto words = [](philox::Block counter, std::uint32_t key0, std::uint32_t key1) {
    const philox::Block b = philox::block(counter, key0, key1);
    return std::vector<std::uint32_t>(b.words, b.words + 4);
  };
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK(words({{0, 0, 0, 0}}, 0, 0) == std::vector<std::uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words({{kOnes, kOnes, kOnes, kOnes}}, kOnes, kOnes) ==
        std::vector<std::uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0) ==
        std::vector<std::uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  // The 64-bit form: low words first.
  const philox::Block b = philox::block(0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822);
  CHECK(b.words[0] == 0xd16cfe09);
}

TEST_CASE("multiply_high", "[random]") {
  using philox::multiply_high;
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  CHECK(multiply_high(kMax, kMax) == kMax - 1);
  CHECK(multiply_high(kMax, 1) == 0);
  CHECK(multiply_high(std::uint64_t{1} << 63, 10) == 5);
  std::uint64_t a = 0x123456789abcdef1, b = 0xfedcba9876543210;
  for (int i = 0; i < 1000; ++i, a = a * 6364136223846793005u + 1, b = b * 2862933555777941757u + 3)
    REQUIRE(multiply_high(a, b) == static_cast<std::uint64_t>((static_cast<__uint128_t>(a) * b) >> 64));
}

namespace {

constexpr std::int64_t kCount = 200'001;

TestTensor draw(RandomKind kind, DType dtype, double a, double b, std::int64_t count = kCount, std::uint64_t stream = 0,
                std::uint64_t key = 42) {
  TestTensor y(dtype, {count});
  run(RandomArgs{.kind = kind, .out = y.out(), .key = key, .stream = stream, .a = a, .b = b});
  CHECK(y.guards_intact());
  return y;
}

struct Moments {
  double mean = 0, variance = 0, lowest = 1e300, highest = -1e300, correlation = 0;  // of neighbours
};
Moments moments(const TestTensor& y) {
  const std::vector<double> v = y.values();
  Moments m;
  const double n = static_cast<double>(v.size());
  for (const double x : v) m.mean += x / n, m.lowest = std::min(m.lowest, x), m.highest = std::max(m.highest, x);
  for (std::size_t i = 0; i < v.size(); ++i) {
    m.variance += (v[i] - m.mean) * (v[i] - m.mean) / n;
    if (i > 0) m.correlation += (v[i] - m.mean) * (v[i - 1] - m.mean) / n;
  }
  m.correlation /= m.variance;
  return m;
}

}  // namespace

TEST_CASE("uniform numbers", "[random]") {
  for (const DType dtype : kFloatingDTypes) {
    const Moments m = moments(draw(RandomKind::uniform, dtype, -1, 3));
    CAPTURE(to_string(dtype));
    CHECK(m.lowest >= -1);
    CHECK(m.highest < 3);
    CHECK(m.lowest < -0.97);
    CHECK(m.highest > 2.95);
    // Five standard deviations of the estimates; the coarse fractions of bf16 shift the mean by half a step.
    CHECK(m.mean == Approx(1).margin(0.013 + (dtype == DType::bf16 ? 4.0 / 512 : 0)));
    CHECK(m.variance == Approx(16.0 / 12).epsilon(0.02));
    CHECK(std::fabs(m.correlation) < 0.012);
  }
  // Bounds whose difference is below the spacing of the numbers: rounding must not reach the upper one.
  const Moments m = moments(draw(RandomKind::uniform, DType::f32, 1e7, 1e7 + 1));
  CHECK(m.highest < 1e7 + 1);
}

TEST_CASE("normal numbers", "[random]") {
  for (const DType dtype : kFloatingDTypes) {
    const TestTensor y = draw(RandomKind::normal, dtype, 2, 3);
    const Moments m = moments(y);
    CAPTURE(to_string(dtype));
    CHECK(m.mean == Approx(2).margin(0.034));
    CHECK(m.variance == Approx(9).epsilon(0.02));
    CHECK(std::fabs(m.correlation) < 0.012);
    CHECK(m.highest < 2 + 3 * 8.7);
    // Shares within one and two standard deviations, and far out.
    double one = 0, two = 0, far = 0;
    for (const double v : y.values()) {
      const double z = std::fabs(v - 2) / 3;
      one += z < 1, two += z<2, far += z> 4;
    }
    CHECK(one / kCount == Approx(0.6827).margin(dtype == DType::bf16 ? 0.01 : 0.006));
    CHECK(two / kCount == Approx(0.9545).margin(dtype == DType::bf16 ? 0.006 : 0.003));
    CHECK(far > 1);
    CHECK(far < 40);
  }
}

TEST_CASE("bernoulli and integers", "[random]") {
  for (const DType dtype : kAllDTypes) {
    const Moments coin = moments(draw(RandomKind::bernoulli, dtype, 0.3, 0));
    CAPTURE(to_string(dtype));
    CHECK(coin.mean == Approx(0.3).margin(0.0055));
    CHECK(coin.highest == 1);
    CHECK(moments(draw(RandomKind::bernoulli, dtype, 0, 0)).highest == 0);
    CHECK(moments(draw(RandomKind::bernoulli, dtype, 1, 0)).lowest == 1);
    if (dtype == DType::boolean) continue;
    const TestTensor die = draw(RandomKind::integer, dtype, 1, 7);
    std::vector<double> faces(7);
    for (const double v : die.values()) {
      if (!(v >= 1 && v <= 6 && v == std::floor(v))) FAIL("got " << v);
      faces[static_cast<std::size_t>(v)] += 1;
    }
    for (int f = 1; f < 7; ++f) CHECK(faces[static_cast<std::size_t>(f)] / kCount == Approx(1 / 6.0).margin(0.0042));
  }
  const Moments wide = moments(draw(RandomKind::integer, DType::i64, -0x1p52, 0x1p52));
  CHECK(std::fabs(wide.mean) < 0x1p52 * 0.0065);
  CHECK(wide.lowest < -0x1p52 * 0.999);
  TestTensor y(DType::i64, {1});
  CHECK_THROWS_AS(run(RandomArgs{.kind = RandomKind::integer, .out = y.out(), .key = 1, .stream = 0, .a = 3, .b = 3}),
                  InvalidArgument);
}

TEST_CASE("an element depends on key, stream and position alone", "[random]") {
  for (const RandomKind kind : {RandomKind::uniform, RandomKind::normal, RandomKind::bernoulli, RandomKind::integer})
    for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
      const auto all = draw(kind, dtype, 0.5, 100, 1001).values();
      for (const std::int64_t count : {0, 1, 2, 3, 5, 998}) {
        const auto part = draw(kind, dtype, 0.5, 100, count).values();
        CHECK(std::equal(part.begin(), part.end(), all.begin()));
      }
      CHECK(draw(kind, dtype, 0.5, 100, 1001, 1).values() != all);
      CHECK(draw(kind, dtype, 0.5, 100, 1001, 0, 43).values() != all);
    }
  // The documented mapping, so that other backends can follow it; also where a counter has more than 32 bits.
  const auto words = draw(RandomKind::uniform, DType::f32, 0, 1, 1003, 0xfedcba9876543210, 0x0123456789abcdef).values();
  for (std::size_t i = 0; i < words.size(); ++i) {
    const philox::Block block = philox::block(i / 4, 0xfedcba9876543210, 0x0123456789abcdef);
    if (words[i] != (block.words[i % 4] >> 8) * 0x1p-24) FAIL("element " << i);
  }
  const philox::Block second = philox::block(1, 7, 42);
  CHECK(draw(RandomKind::uniform, DType::f32, 0, 1, 6, 7)[5] == (second.words[1] >> 8) * 0x1p-24);
  CHECK(draw(RandomKind::uniform, DType::f64, 0, 1, 4, 7)[3] ==
        static_cast<double>(((static_cast<std::uint64_t>(second.words[3]) << 32) | second.words[2]) >> 11) * 0x1p-53);
  CHECK(draw(RandomKind::bernoulli, DType::u8, 0.5, 1, 6, 7)[5] == (second.words[1] < 0x80000000u ? 1 : 0));
}
