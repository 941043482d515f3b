// Rotary embedding against the formulas, written out.
#include "lockstep/models/language/rotary.h"

#include <numbers>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/stream/stream.h"
#include "support/catch.h"
#include "support/devices.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;

// One head, element by element.
std::vector<double> turned(const std::vector<double>& x, double position, RotaryPairs pairs, std::size_t dims,
                           const std::vector<float>& frequencies) {
  std::vector<double> y = x;
  for (std::size_t i = 0; i < dims / 2; ++i) {
    const std::size_t a = pairs == RotaryPairs::halves ? i : 2 * i,
                      b = pairs == RotaryPairs::halves ? i + dims / 2 : a + 1;
    const double angle = position * static_cast<double>(frequencies[i]);
    y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
    y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
  }
  return y;
}

}  // namespace

TEST_CASE("rotary embedding turns pairs of halves or neighbours, of all of a head or its first part") {
  const RotaryPairs pairs = GENERATE(RotaryPairs::halves, RotaryPairs::neighbours);
  const std::int64_t dims = GENERATE(8, 6, 2), size = 8, heads = 2;
  CAPTURE(static_cast<int>(pairs), dims);
  manual_seed(1);
  const std::vector<std::int64_t> positions{0, 3, 1, 1000};
  const Tensor x = randn({4, heads, size});
  const RotaryOptions options{.theta = 100, .pairs = pairs};
  const std::vector<float> frequencies = rotary_frequencies(dims, options);
  const RotaryAngles angles = RotaryEmbedding(dims, options).at(from_data(positions, {4}), DType::f32);
  const std::vector<float> got = rotate(x, angles).to_vector<float>(), given = x.to_vector<float>();
  for (std::size_t row = 0; row < 4 * heads; ++row) {
    const std::vector<double> in(given.begin() + row * size, given.begin() + (row + 1) * size);
    const std::vector<double> wanted =
        turned(in, static_cast<double>(positions[row / heads]), pairs, static_cast<std::size_t>(dims), frequencies);
    for (std::size_t i = 0; i < size; ++i) CHECK(got[row * size + i] == Approx(wanted[i]).margin(2e-4));
  }
}

TEST_CASE("products of turned queries and keys depend on their distance alone") {
  manual_seed(2);
  const Tensor q = randn({1, 1, 16}), k = randn({1, 1, 16});
  const RotaryEmbedding rotary(16, {});
  const auto product = [&](std::int64_t i, std::int64_t j) {
    const auto at = [&](const Tensor& x, std::int64_t place) {
      return rotate(x, rotary.at(from_data({place}, {1}), DType::f32));
    };
    return (at(q, i) * at(k, j)).sum().item<double>();
  };
  CHECK(product(7, 3) == Approx(product(104, 100)).margin(1e-3));
  CHECK(std::abs(product(7, 3) - product(3, 7)) > 1e-2);
}

TEST_CASE("frequencies are scaled as published") {
  const double turn = 2 * std::numbers::pi;
  const std::vector<float> plain = rotary_frequencies(8, {.theta = 10000});
  CHECK(plain == std::vector<float>{1.0f, 0.1f, 0.01f, 0.001f});
  const std::vector<float> linear = rotary_frequencies(8, {.scaling = RotaryScaling::linear, .factor = 4});
  for (int i = 0; i < 4; ++i) CHECK(linear[i] == Approx(plain[i] / 4));
  // Wavelengths of 6, 63, 628 and 6283 tokens, of 2048 that it was trained on: short, short, between, long.
  const std::vector<float> llama3 = rotary_frequencies(8, {.scaling = RotaryScaling::llama3,
                                                           .factor = 8,
                                                           .low_freq_factor = 1,
                                                           .high_freq_factor = 4,
                                                           .original_positions = 2048});
  const double smooth = (2048 / (turn / 0.01) - 1) / 3;
  CHECK(llama3[0] == Approx(1));
  CHECK(llama3[1] == Approx(0.1));
  CHECK(llama3[2] == Approx((1 - smooth) * 0.01 / 8 + smooth * 0.01));
  CHECK(llama3[3] == Approx(0.001 / 8));
  // The pairs that turn 32 times and once within 2048 tokens: 1.008 and 2.513 of 0 to 3.
  const std::vector<float> yarn =
      rotary_frequencies(8, {.scaling = RotaryScaling::yarn, .factor = 4, .original_positions = 2048});
  CHECK(yarn[0] == Approx(1));
  CHECK(yarn[1] == Approx(0.1));                          // the ramp begins at 1
  CHECK(yarn[2] == Approx(0.5 * 0.01 + 0.5 * 0.01 / 4));  // and ends at 3
  CHECK(yarn[3] == Approx(0.001 / 4));
  const std::vector<float> exact = rotary_frequencies(
      8, {.scaling = RotaryScaling::yarn, .factor = 4, .original_positions = 2048, .truncate = false});
  CHECK(exact[2] < yarn[2]);
}

TEST_CASE("YaRN scales cosines and sines") {
  const auto cosine = [](RotaryOptions options) {
    options.scaling = RotaryScaling::yarn;
    return RotaryEmbedding(4, options).at(from_data({0}, {1}), DType::f32).cosines.to_vector<float>()[0];
  };
  CHECK(cosine({.factor = 4}) == Approx(0.1 * std::log(4.0) + 1));
  CHECK(cosine({.factor = 0.5}) == Approx(1));
  CHECK(cosine({.factor = 4, .attention_factor = 1.25}) == Approx(1.25));
}

TEST_CASE("rotary embedding has a gradient, in any pairing") {
  const RotaryPairs pairs = GENERATE(RotaryPairs::halves, RotaryPairs::neighbours);
  manual_seed(3);
  Tensor x = randn({3, 2, 6}).set_requires_grad();
  const Tensor weights = randn({3, 2, 6});
  const RotaryAngles angles = RotaryEmbedding(4, {.pairs = pairs}).at(from_data({2, 0, 5}, {3}), DType::f32);
  (rotate(x, angles) * weights).sum().backward();
  // Turned back.
  const RotaryAngles back{angles.cosines, -angles.sines, pairs};
  CHECK(allclose(x.grad(), rotate(weights, back), 1e-5, 1e-6));
}

TEST_CASE("frequencies are copied to a device once for each stream, from any thread") {
  const Device device = support::device_at(1);
  const RotaryEmbedding rotary(64, {});
  const Tensor positions = arange(5).to(device), expected = rotary.at(arange(5), DType::f32).sines;
  synchronize(device);
  const auto in_use = [&] {
    synchronize(device);
    return memory_stats(device).in_use_bytes;
  };
  const std::size_t before = in_use();
  CHECK(equal(rotary.at(positions, DType::f32).sines, expected));
  const std::size_t once = in_use();
  CHECK(once > before);
  CHECK(equal(RotaryEmbedding(rotary).at(positions, DType::f32).sines, expected));  // a copy has what it has
  CHECK(in_use() == once);
  std::vector<std::thread> threads;
  std::vector<int> same(4);
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const Stream stream(device);
      const StreamScope scope(stream);
      for (int repeat = 0; repeat < 3; ++repeat)
        same[static_cast<std::size_t>(i)] += equal(rotary.at(arange(5).to(device), DType::f32).sines, expected);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(same == std::vector<int>(4, 3));
}

TEST_CASE("rotary embedding refuses what makes no sense") {
  CHECK_THROWS_WITH(rotary_frequencies(3, {}), Contains("even number"));
  CHECK_THROWS_WITH(rotary_frequencies(4, {.theta = 1}), Contains("theta above 1"));
  CHECK_THROWS_WITH(rotary_frequencies(4, {.factor = 0}), Contains("factor"));
  CHECK_THROWS_WITH(
      rotary_frequencies(4, {.scaling = RotaryScaling::llama3, .low_freq_factor = 4, .high_freq_factor = 4}),
      Contains("high_freq_factor > low_freq_factor"));
  CHECK_THROWS_WITH(rotary_frequencies(4, {.scaling = RotaryScaling::yarn, .beta_fast = 0}), Contains("beta_fast"));
  const RotaryEmbedding rotary(8, {});
  CHECK_THROWS_WITH(rotary.at(zeros({2, 2}, {.dtype = DType::i64}), DType::f32), Contains("positions [N]"));
  const RotaryAngles angles = rotary.at(arange(3), DType::f32);
  CHECK_THROWS_WITH(rotate(zeros({3, 1, 4}), angles), Contains("[N, H, D]"));
  CHECK_THROWS_WITH(rotate(zeros({2, 1, 8}), angles), Contains("[N, H, D]"));
}

}  // namespace lockstep::test
