// Functions of two tensors, and of a tensor and a number.
#include <cmath>

#include "tensor/ops/support.h"

using namespace op_tests;

namespace {

Tensor u8(std::initializer_list<int> values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::u8});
}

Tensor i32(std::initializer_list<std::int64_t> values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::i32});
}

}  // namespace

TEST_CASE("arithmetic broadcasts by NumPy's rules") {
  const Tensor a = f64({1, 2, 3, 4, 5, 6}, {2, 3}), row = f64({10, 20, 30}, {3}), column = f64({100, 200}, {2, 1});
  CHECK(values(a + row) == Doubles{11, 22, 33, 14, 25, 36});
  CHECK(values(row - a) == Doubles{9, 18, 27, 6, 15, 24});
  CHECK(values(a * column) == Doubles{100, 200, 300, 800, 1000, 1200});
  CHECK(values(column / row) == Doubles{10, 5, 100.0 / 30, 20, 10, 200.0 / 30});
  CHECK((row + column).shape() == Shape{2, 3});
  CHECK(values(a + f64({1}, {})) == Doubles{2, 3, 4, 5, 6, 7});
  CHECK((zeros({0, 3}) + zeros({3})).shape() == Shape{0, 3});
  CHECK((zeros({1}) + zeros({0})).shape() == Shape{0});
  CHECK(values(maximum(a, f64({3}, {}))) == Doubles{3, 3, 3, 4, 5, 6});
  CHECK(values(minimum(a, f64({3}, {}))) == Doubles{1, 2, 3, 3, 3, 3});
  CHECK(values(pow(a, f64({2, 0, 1}, {3}))) == Doubles{1, 1, 3, 16, 1, 6});
  CHECK(values(where(a > row * 0.1, a, column)) == Doubles{100, 100, 100, 4, 5, 6});
  CHECK(values(a.t() + a.t()) == Doubles{2, 8, 4, 10, 6, 12});
}

TEST_CASE("dividing by a number rounds like a division") {
  const Tensor x = rand({1000});
  const auto in = x.to_vector<float>();
  for (const float divisor : {3.0f, 10.0f, 255.0f, 0.25f, -7.0f}) {
    const auto got = (x / divisor).to_vector<float>();
    bool same = true;
    for (std::size_t i = 0; i < in.size(); ++i) same = same && got[i] == in[i] / divisor;
    INFO(divisor);
    CHECK(same);
  }
}

TEST_CASE("comparisons and logic") {
  const Tensor a = f64({1, 2, 3, NAN}, {4}), b = f64({2, 2, 2, NAN}, {4});
  const auto bits = [](const Tensor& x) {
    CHECK(x.dtype() == DType::boolean);
    CHECK_FALSE(x.requires_grad());
    return x.to_vector<int>();
  };
  using Bits = std::vector<int>;
  CHECK(bits(a == b) == Bits{0, 1, 0, 0});
  CHECK(bits(a != b) == Bits{1, 0, 1, 1});
  CHECK(bits(a < b) == Bits{1, 0, 0, 0});
  CHECK(bits(a <= b) == Bits{1, 1, 0, 0});
  CHECK(bits(a > b) == Bits{0, 0, 1, 0});
  CHECK(bits(a >= b) == Bits{0, 1, 1, 0});
  CHECK(bits(a > 1.5) == Bits{0, 1, 1, 0});
  CHECK(bits(a == 1) == Bits{1, 0, 0, 0});
  CHECK(bits(logical_not(a > 1.5)) == Bits{1, 0, 0, 1});
  CHECK(bits(logical_and(a > 1, a < 3)) == Bits{0, 1, 0, 0});
  CHECK(bits(logical_or(a > 2, a < 2)) == Bits{1, 0, 1, 0});
  CHECK(bits(logical_xor(a > 1, a < 3)) == Bits{1, 0, 1, 0});
  CHECK(bits(from_data({1, 2}, {2}) < 1.5) == Bits{1, 0});
}

TEST_CASE("dividing in place by a number divides as out of place, also where the dtype has no such number") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    for (const double divisor : {65536.0, 1e5, 0.1, 3.0, -7.0, 1e-6}) {
      INFO(to_string(dtype) << ' ' << divisor);
      const Tensor x = reals({1000, -3, 0.5, 0}, dtype);
      CHECK(equal(x.clone().div_(divisor), x / divisor));
    }
  CHECK(reals({1000}, DType::f16).div_(65536).item<double>() == Approx(1000.0 / 65536).epsilon(1e-3));
  Tensor x = reals({2}, DType::f16).set_requires_grad();
  (x * 1).div_(65536).backward();
  CHECK(x.grad().item<double>() == 1.0 / 65536);
}

TEST_CASE("numbers that a 16-bit dtype does not have are not rounded before they are used") {
  const Tensor x = reals({10, 100, -1000}, DType::f16);
  CHECK(values(1e5 / x) == Doubles{10000, 1000, -100});
  CHECK(values(floor_divide(x, 1e5)) == Doubles{0, 0, -1});
  CHECK(values(floor_divide(reals({5, -5}, DType::bf16), 0.3)) == Doubles{16, -17});
  CHECK(values(remainder(reals({5, -5}, DType::bf16), 0.3))[0] == Approx(0.2).epsilon(0.005));
  CHECK(values(pow(1e6, reals({0.5, 0.25}, DType::f16)))[0] == 1000);
  CHECK(values(3 / reals({2, 4}, DType::bf16)) == Doubles{1.5, 0.75});
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor leaf = reals({10, 100}, dtype).set_requires_grad();
    sum(1e5 / leaf).backward();
    CHECK(leaf.grad().dtype() == dtype);
    CHECK(values(leaf.grad())[0] == Approx(-1000).epsilon(0.01));
  }
}

TEST_CASE("rounded quotients, remainders and norms") {
  const Tensor a = f64({7, -7, 5.5}, {3}), b = f64({2, 2, -2}, {3});
  CHECK(values(floor_divide(a, b)) == Doubles{3, -4, -3});
  CHECK(values(remainder(a, b)) == Doubles{1, 1, -0.5});
  CHECK(values(floor_divide(a, 2)) == Doubles{3, -4, 2});
  CHECK(values(remainder(a, 2)) == Doubles{1, 1, 1.5});
  const Tensor whole = from_data({7, -7, 3}, {3});
  CHECK(floor_divide(whole, 2).dtype() == DType::i64);
  CHECK(values(floor_divide(whole, 2)) == Doubles{3, -4, 1});
  CHECK(values(remainder(whole, from_data({2, -3, 0}, {3}))) == Doubles{1, -1, 3});
  CHECK(values(remainder(whole, 2.5)) == Doubles{2, 0.5, 0.5});
  CHECK_FALSE(floor_divide(a.clone().set_requires_grad(), 2).requires_grad());
  CHECK_THROWS_WITH(remainder(a > 0.0, b > 0.0), Contains("[remainder]") && Contains("bool"));

  const Tensor x = f64({3, -4, 0, 1}, {2, 2});
  CHECK(vector_norm(x, 1).item<double>() == 8);
  CHECK(vector_norm(x, 2).item<double>() == Approx(std::sqrt(26.0)));
  CHECK(vector_norm(x, 3).item<double>() == Approx(std::cbrt(92.0)));
  CHECK(vector_norm(x, 0).item<double>() == 3);
  CHECK(values(vector_norm(x, kInf, {1})) == Doubles{4, 1});
  CHECK(values(vector_norm(x, -kInf, {0}, true)) == Doubles{0, 1});
  CHECK(vector_norm(x, kInf, {0, 1}).shape().empty());
  CHECK(vector_norm(from_data({3, 4}, {2}), 2).dtype() == DType::f32);
}

TEST_CASE("quotients rounded down, where infinities take part") {
  CHECK(values(floor_divide(reals({1, -1, 1, -1, 0}), reals({-kInf, kInf, kInf, -kInf, kInf}))) ==
        Doubles{-1, -1, 0, 0, 0});
  CHECK(values(floor_divide(reals({7, -7, 0.3}), reals({2, 2, 0.1}))) == Doubles{3, -4, 2});
  CHECK(std::isnan(floor_divide(reals({kInf}), 2).item<double>()));
  CHECK(floor_divide(reals({1}), 0).item<double>() == kInf);
}

TEST_CASE("numbers wrap into an integer dtype, and are compared by their value") {
  CHECK(ints(add(u8({5, 1}), u8({3, 3}), -1)) == std::vector<int>{2, 254});
  CHECK(ints(u8({5}).add_(u8({3}), -1)) == std::vector<int>{2});
  CHECK(ints(add(i32({1}), i32({1}), -4294967295.0)) == std::vector<int>{2});
  CHECK(ints(i32({1}) + 4294967298.0) == std::vector<int>{3});
  CHECK(ints(i32({3}) * -4294967295.0) == std::vector<int>{3});
  CHECK(ints(full({1}, -1, {.dtype = DType::u8})) == std::vector<int>{255});
  CHECK(ints(u8({0, 0}).fill_(-2)) == std::vector<int>{254, 254});
  CHECK(ints(where(from_data({true, false}, {2}), -7.0, u8({1, 2}))) == std::vector<int>{249, 2});
  CHECK(ints(pow(-2.0, u8({0, 1, 2, 3}))) == std::vector<int>{1, 254, 4, 248});
  CHECK(ints(remainder(u8({255, 7}), -2)) == std::vector<int>{1, 7});

  CHECK(ints(eq(u8({0, 255}), -1)) == std::vector<int>{0, 0});
  CHECK(ints(ne(u8({0, 255}), 256)) == std::vector<int>{1, 1});
  CHECK(ints(gt(u8({0, 255}), -1)) == std::vector<int>{1, 1});
  CHECK(ints(le(u8({0, 255}), 256)) == std::vector<int>{1, 1});
  CHECK(ints(lt(i32({2147483647}), 2147483648.0)) == std::vector<int>{1});
  CHECK(ints(eq(i32({2147483647, -2147483647 - 1}), -2147483649.0)) == std::vector<int>{0, 0});
  const Tensor most = from_data({std::numeric_limits<std::int64_t>::max()}, {1});
  CHECK(ints(lt(most, 0x1p63)) == std::vector<int>{1});
  CHECK(ints(ge(most, -1e30)) == std::vector<int>{1});

  CHECK_THROWS_AS(add(i32({1}), i32({1}), 0.5), InvalidArgument);
  CHECK_THROWS_AS(i32({1}).add_(i32({1}), 0.5), InvalidArgument);
  CHECK_THROWS_AS(add(i32({1}), i32({1}), kInf), InvalidArgument);
}

TEST_CASE("NaN passes the gradient on") {
  Tensor x = reals({kNaN, 1, -1, 0}).set_requires_grad(), y = reals({2, kNaN, -2, 0}).set_requires_grad();
  CHECK(values(sum_gradient(x, relu(x))) == Doubles{1, 1, 0, 0});
  CHECK(values(sum_gradient(x, maximum(x, y))) == Doubles{1, 1, 1, 0.5});
  CHECK(values(sum_gradient(y, maximum(x, y))) == Doubles{1, 1, 0, 0.5});
  CHECK(values(sum_gradient(x, minimum(x, y))) == Doubles{1, 1, 0, 0.5});
}
