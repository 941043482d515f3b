// quantize, dequantize and quantized_linear: codes, errors, derivatives.
#include <cmath>
#include <limits>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/quantized_ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/gradcheck.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;

double largest_error(const Tensor& a, const Tensor& b) {
  return max(abs(a.to(DType::f64) - b.to(DType::f64))).item<double>();
}

QuantizedWeight quantized(const Tensor& weight, int bits, std::int64_t group = 64) {
  return quantize(weight, {.bits = bits, .group_size = group});
}

}  // namespace

TEST_CASE("8 bits have one scale for a row, by its largest element, and halves go to the even code") {
  // A scale of 2: halves of it are exact.
  const QuantizedWeight q = quantized(
      from_data(Doubles{254, 1, 3, -5, -254, 0, 0, 0, 0, 0, -127, 0.5, 1, 0.75, 2}, {3, 5}, {.dtype = DType::f32}), 8);
  CHECK(q.codes.dtype() == DType::i8);
  CHECK(q.codes.shape() == Shape{3, 5});
  CHECK(q.scales.shape() == Shape{3, 1});
  CHECK(q.codes.to_vector<std::int64_t>() == Integers{127, 0, 2, -2, -127, 0, 0, 0, 0, 0, -127, 0, 1, 1, 2});
  CHECK(q.scales.to_vector<double>() == Doubles{2, 0, 1});
  CHECK(q.dequantize().to_vector<double>() == Doubles{254, 0, 4, -4, -254, 0, 0, 0, 0, 0, -127, 0, 1, 1, 2});
  CHECK((q.bits() == 8 && q.outputs() == 3 && q.inputs == 5 && q.group_size == 5 && q.bytes() == 15 + 12));
}

TEST_CASE("4 bits have a scale for each group, two codes in a byte, and the largest element is -8") {
  Doubles numbers(35, 0.0);
  // The first group: a scale of 0.5. The second one has three elements and a scale of -1.
  numbers[0] = -4, numbers[1] = 3.5, numbers[2] = 0.5, numbers[3] = -0.5, numbers[4] = 0.25, numbers[5] = 0.75;
  numbers[31] = 4, numbers[32] = 8, numbers[33] = -3, numbers[34] = 1;
  const QuantizedWeight q = quantized(from_data(numbers, {1, 35}, {.dtype = DType::f32}), 4, 32);
  CHECK(q.codes.dtype() == DType::u8);
  CHECK(q.codes.shape() == Shape{1, 18});
  CHECK(q.scales.to_vector<double>() == Doubles{0.5, -1});
  Integers bytes(18, 0);
  bytes[0] = 0x78, bytes[1] = 0xf1, bytes[2] = 0x20, bytes[15] = 0x70, bytes[16] = 0x38, bytes[17] = 0x0f;
  CHECK(q.codes.to_vector<std::int64_t>() == bytes);
  Doubles back = numbers;
  back[4] = 0, back[5] = 1, back[31] = 3.5;  // halves to the even one, and what would be 8
  CHECK(q.dequantize().to_vector<double>() == back);
  CHECK((q.bits() == 4 && q.group_size == 32));
}

TEST_CASE("a quantised weight differs by half a step from what it was, of any dtype and layout") {
  manual_seed(3);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const std::int64_t columns : {1, 31, 64, 100, 257}) {
      const Tensor weight = randn({7, columns}, {.dtype = DType::f64}).to(dtype), turned = weight.t().contiguous().t();
      for (const int bits : {8, 4})
        for (const std::int64_t group : {32, 64, 128}) {
          const QuantizedWeight q = quantized(weight, bits, group);
          const Doubles was = weight.to_vector<double>(), is = q.dequantize().to_vector<double>(),
                        scales = q.scales.to_vector<double>();
          const std::int64_t groups = q.scales.size(1);
          for (std::int64_t i = 0; i < weight.count(); ++i) {
            const double step =
                std::fabs(scales[static_cast<std::size_t>(i / columns * groups + i % columns / q.group_size)]);
            const auto at = static_cast<std::size_t>(i);
            const double half = bits == 4 && std::fabs(was[at]) > 7.4 * step ? 1.001 * step : 0.501 * step;
            REQUIRE(std::fabs(was[at] - is[at]) <= half);
          }
          CHECK(largest_error(quantized(turned, bits, group).dequantize(), q.dequantize()) == 0);
        }
    }
}

TEST_CASE("quantize refuses what it cannot do") {
  const Tensor weight = ones({2, 4});
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
    for (const int bits : {8, 4}) {
      Tensor broken = weight.clone();
      broken.select(0, 1).narrow(0, 2, 1).fill_(bad);
      CHECK_THROWS_WITH(quantized(broken, bits), Contains("expected finite numbers") && Contains("row 1, column 2"));
    }
  Tensor beyond = ones({4, 2}, {.dtype = DType::f64}).t();  // finite, and infinite as f32
  beyond.select(0, 1).narrow(0, 2, 1).fill_(-1e300);
  CHECK_THROWS_WITH(quantized(beyond, 8), Contains("range of f32") && Contains("got -1e+300 in row 1, column 2"));
  beyond.select(0, 1).narrow(0, 2, 1).fill_(3.4e38);
  CHECK(quantized(beyond, 8).dequantize(DType::f64)[1][2].item<double>() == Approx(3.4e38));
  CHECK_THROWS_WITH(quantized(weight, 5), Contains("expected 8 or 4 bits, got 5"));
  CHECK_THROWS_WITH(quantized(weight, 4, 48), Contains("expected groups of 32, 64 or 128, got 48"));
  CHECK_THROWS_WITH(quantized(ones({4}), 8), Contains("expected a weight [outputs, inputs]"));
  CHECK_THROWS_WITH(quantized(ones({2, 3}, {.dtype = DType::i32}), 8), Contains("quantize"));
  QuantizedWeight q = quantized(weight, 8);
  q.scales = ones({3, 1});
  CHECK_THROWS_WITH(quantized_linear(ones({1, 4}), q), Contains("expected scales f32 [2, 1]"));
  q = quantized(ones({4, 4}), 8);
  q.codes = q.codes.t();
  CHECK_THROWS_WITH(quantized_linear(ones({1, 4}), q), Contains("contiguous"));
  q = quantized(weight, 8);
  CHECK_THROWS_WITH(quantized_linear(ones({1, 5}), q), Contains("expected an input [.., 4]"));
  CHECK_THROWS_WITH(quantized_linear(ones({1, 4}), q, ones({3})), Contains("expected a bias [2]"));
}

TEST_CASE("quantized_linear is linear with the dequantised weight, whatever the input's layout and rank") {
  manual_seed(5);
  const Activation activation = GENERATE(Activation::none, Activation::relu, Activation::gelu_tanh);
  for (const int bits : {8, 4}) {
    const QuantizedWeight q = quantized(randn({13, 70}), bits);
    const Tensor bias = randn({13}), whole = q.dequantize();
    for (const Shape& shape : {Shape{70}, Shape{3, 70}, Shape{2, 11, 70}, Shape{0, 70}}) {
      const Tensor x = randn(shape);
      CHECK(allclose(quantized_linear(x, q, bias, {.activation = activation}), linear(x, whole, bias, activation), 1e-5,
                     1e-5));
    }
    const Tensor turned = randn({70, 3}).t(), gaps = randn({3, 140}).narrow(1, 35, 70);
    CHECK(allclose(quantized_linear(turned, q, bias), linear(turned, whole, bias), 1e-5, 1e-5));
    CHECK(allclose(quantized_linear(gaps, q), linear(gaps, whole), 1e-5, 1e-5));
    // Rounded to 8 bits: a step of the largest element is 1/127 of it.
    const Tensor x = randn({4, 70});
    CHECK(largest_error(quantized_linear(x, q, bias, {.int8_activations = true}), linear(x, whole, bias)) < 0.5);
    CHECK(largest_error(quantized_linear(x, q, bias, {.int8_activations = true}), linear(x, whole, bias)) > 0);
  }
}

TEST_CASE("gradients of quantized_linear go to the input and the bias") {
  manual_seed(7);
  for (const int bits : {8, 4}) {
    const QuantizedWeight q = quantized(randn({5, 33}), bits, 32);
    const auto f = [&](const std::vector<Tensor>& in) { return quantized_linear(in[0], q, in[1]); };
    const std::vector<Tensor> leaves{support::random_leaf({3, 33}, 1), support::random_leaf({5}, 2)};
    CHECK(support::gradcheck(f, leaves) == "");
    CHECK(support::gradgradcheck([&](const std::vector<Tensor>& in) { return square(f(in)); }, leaves) == "");
    for (const std::int64_t rows : {3, 12}) {
      const Tensor x = randn({rows, 33}).set_requires_grad(), bias = randn({5}).set_requires_grad(),
                   other = x.detach().clone().set_requires_grad(),
                   other_bias = bias.detach().clone().set_requires_grad();
      for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu}) {
        const Tensor ours = quantized_linear(x, q, bias, {.activation = activation}),
                     theirs = linear(other, q.dequantize(), other_bias, activation);
        const auto got = grad(sum(square(ours)), {x, bias}), want = grad(sum(square(theirs)), {other, other_bias});
        CHECK(allclose(got[0], want[0], 1e-4, 1e-4));
        CHECK(allclose(got[1], want[1], 1e-4, 1e-4));
      }
    }
  }
}

TEST_CASE("quantized_linear under autocast computes in 16 bits") {
  const QuantizedWeight q = quantized(ones({3, 4}), 8);
  const Autocast autocast(DType::bf16);
  CHECK(quantized_linear(ones({2, 4}), q, ones({3})).dtype() == DType::bf16);
}

TEST_CASE("quantised weights move between devices") {
  const Device device = support::device_at(1);
  const QuantizedWeight q = quantized(randn({6, 40}), 4, 32), there = q.to(device);
  CHECK(there.device() == device);
  CHECK(largest_error(there.dequantize().to(Device::cpu()), q.dequantize()) == 0);
  const Tensor x = randn({2, 40});
  CHECK(largest_error(quantized_linear(x.to(device), there).to(Device::cpu()), quantized_linear(x, q)) < 1e-5);
  CHECK_THROWS_AS(quantized_linear(x, there), InvalidArgument);
  CHECK(quantized(randn({6, 40}).to(device), 8).device() == device);
}
